"""A run directory survives being killed at any moment, a full disk, a second trainer and foreign files."""

import asyncio
import json
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaagentx.atomic import exclusive_lock
from metaagentx.backends.scripted import ScriptedPolicy
from metaagentx.errors import MetaAgentXError
from metaagentx.policy import Policy
from metaagentx.runs import Best, Run, rollout_from_json, rollout_to_json
from metaagentx.runs.trees import read_rollouts
from metaagentx.types import (
    JSON,
    AssertTest,
    Call,
    CodeTests,
    CustomGrader,
    Design,
    Execution,
    Fault,
    FinalAnswer,
    FunctionTest,
    Grading,
    GymEntry,
    MathGold,
    ProgramOutput,
    Reward,
    Role,
    Rollout,
    StdinTest,
    Task,
)
from tests.unprivileged import as_nobody, public_directory

PAGE = (Path(__file__).parents[2] / "docs" / "runs.md").read_text()
ANSWER = FinalAnswer("boxed", "4", r"\boxed{4}", 0)
CONFIG = 'name = "first"\nsteps = 12\n'


def a_rollout(text: str = "I think: 4") -> Rollout:
    task = Task("t1", "math", "What is 2 + 2?", MathGold(("4",)), "gsm8k", "train", difficulty=0.1, license="MIT")
    asked = ({"role": "user", "content": task.question},)
    designed = Call(Role.DESIGNER, "Designer", asked, "<code>...</code>", tokens=9)
    said = Call(Role.EXECUTOR, "Solver", asked, text, tokens=3, advantage=-0.5)
    said = replace(said, prompt=(1, 2, 3, 4), completion=(5, 6, 7), logprobs=(-0.1, -0.2, -0.3), seconds=0.25)
    said.prompt_tokens = 4
    solved = Execution([said], ANSWER, reward=Reward(1.0, 0.4, 0.4, 0.0, 1.8, True), log="hm\n", seconds=0.5)
    solved.fed, solved.programs = "in the prompt of call 0", [ProgramOutput(0, "4")]
    nothing = Reward(0.0, 0.0, 0.0, 0.0, 0.0, False, "no answer")
    stuck = Execution([], fault=Fault("timeout", "the script ran for 60 s"), reward=nothing)
    worked = Design(designed, "print()", [solved, stuck], reward=0.9, pattern="agent")
    return Rollout(task, [worked, Design(designed, None, fault=Fault("no_script", "no code"), reward=0.0)])


def without_tokens(rollout: Rollout) -> Rollout:
    def bare(call: Call) -> Call:
        return replace(call, prompt=(), completion=(), logprobs=())

    def run(execution: Execution) -> Execution:
        return replace(execution, calls=[bare(call) for call in execution.calls])

    designs = [replace(d, call=bare(d.call), executions=[run(e) for e in d.executions]) for d in rollout.designs]
    return Rollout(rollout.task, designs)


def policies(*names: str) -> dict[str, Policy]:
    return {name: ScriptedPolicy([]) for name in names or ("designer", "executor")}


def steps_of(policy: Policy) -> list[float]:
    return cast(ScriptedPolicy, policy).steps


def train(run: Run, upto: int, every: int = 2, keep: int = 2) -> None:
    """Steps that are a function of their number, with a checkpoint now and then."""

    async def all_steps() -> None:
        learning = policies()
        await run.load_checkpoint(learning)
        for step in range(run.next_step, upto):
            for policy in learning.values():
                await policy.optim_step(step / 7)
            run.write_step(step, {"reward": step / 3, "loss": 1e-7 * step}, [a_rollout(f"step {step}")])
            if (step + 1) % every == 0:
                await run.save_checkpoint(step + 1, learning, keep)

    asyncio.run(all_steps())


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "first"


# Reading and writing


def test_what_was_written_is_read_back(directory: Path) -> None:
    with Run.create(directory, CONFIG) as run:
        run.write_step(0, {"reward": 0.1, "stage": "executor", "tasks": 8}, [a_rollout(), a_rollout("ü \u2028")])
        run.write_step(1, {"reward": 0.2}, None)
        run.log("two steps")
    reader = Run.open(directory)
    assert reader.config_text == CONFIG
    assert reader.metrics() == [
        {"format": 1, "step": 0, "reward": 0.1, "stage": "executor", "tasks": 8},
        {"format": 1, "step": 1, "reward": 0.2},
    ]
    assert reader.rollouts(0) == [without_tokens(a_rollout()), without_tokens(a_rollout("ü \u2028"))]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\S+ two steps\n", (directory / "log.txt").read_text())
    with pytest.raises(MetaAgentXError, match="no rollouts of step 1 were written"):
        reader.rollouts(1)


def test_rollouts_of_versions_that_did_not_know_who_wrote_what_are_read() -> None:
    data = json.loads(json.dumps(rollout_to_json(a_rollout())))
    for execution in data["designs"][0]["executions"]:
        del execution["fed"], execution["programs"]
    solved, stuck = rollout_from_json(data).designs[0].executions
    assert (solved.fed, solved.programs, stuck.fed) == (None, [], None) and solved.answer == ANSWER


NEW_IN_CALLS = {"instruction": "", "logprobs": [], "started": 0.0, "lengths": []}


def test_rollouts_of_versions_whose_answers_were_text_are_read() -> None:
    file = Path(__file__).with_name("rollouts_with_text_answers.jsonl")
    written = json.loads(file.read_text())
    (rollout,) = read_rollouts(file)
    (execution,) = rollout.designs[0].executions
    assert execution.answer == FinalAnswer("boxed", "2992", r"\boxed{2992}", 0)
    assert rollout.task.license == "Apache-2.0"
    saved = rollout_to_json(rollout)
    assert rollout_from_json(saved) == rollout
    (old,) = written["designs"][0]["executions"]
    assert {**json.loads(json.dumps(saved))["designs"][0]["executions"][0], "answer": None} == {
        **{name: value for name, value in old.items() if name != "answer_call"}, "answer": None, "structure": None,
        "tools": [], "told": [], "started": 0.0, "calls": [call | NEW_IN_CALLS for call in old["calls"]],
    }  # fmt: skip


def test_rollouts_have_counts_and_no_tokens(directory: Path) -> None:
    with Run.create(directory, CONFIG) as run:
        run.write_step(0, {}, [a_rollout()])
    (line,) = (directory / "rollouts" / "000000.jsonl").read_text().splitlines()
    call = json.loads(line)["designs"][0]["executions"][0]["calls"][0]
    assert (call["prompt_tokens"], call["tokens"], call["advantage"], call["seconds"]) == (4, 3, -0.5, 0.25)
    assert not {"prompt", "completion"} & set(call)
    assert (call["logprobs"], call["lengths"]) == ([], []), "which text they belong to is not known"


def test_log_probabilities_are_saved_with_two_decimals_for_the_text_of_each_token(directory: Path) -> None:
    tree = a_rollout()
    call = tree.designs[0].executions[0].calls[0]
    call.lengths, call.logprobs = (1, 0, len(call.text) - 1), (-0.12345, 0.0, -17.5)
    with Run.create(directory, CONFIG) as run:
        run.write_step(0, {}, [tree])
    (read,) = run.rollouts(0)
    again = read.designs[0].executions[0].calls[0]
    assert (again.lengths, again.logprobs) == (call.lengths, (-0.12, 0.0, -17.5))
    assert call.logprobs == (-0.12345, 0.0, -17.5), "training reads the exact ones"


def test_metrics_have_sorted_keys_and_exact_numbers(directory: Path) -> None:
    with Run.create(directory, CONFIG) as run:
        run.write_step(0, {"z": 0.1 + 0.2, "a": float("nan"), "m": {"low": float("-inf")}}, None)
    line = '{"a": "nan", "format": 1, "m": {"low": "-inf"}, "step": 0, "z": 0.30000000000000004}\n'
    assert (directory / "metrics.jsonl").read_text() == line


def test_steps_come_in_order(directory: Path) -> None:
    with Run.create(directory, CONFIG) as run:
        with pytest.raises(ValueError, match="step 1 is not the next step, which is 0"):
            run.write_step(1, {}, None)
        with pytest.raises(ValueError, match="0 steps are done"):
            asyncio.run(run.save_checkpoint(1, policies(), keep=1))


def test_a_run_that_is_not_entered_is_not_written(directory: Path) -> None:
    with pytest.raises(RuntimeError, match="inside `with`"):
        Run.create(directory, CONFIG).write_step(0, {}, None)


scores = st.floats(allow_nan=False, allow_infinity=False)
anything = st.text(alphabet=st.characters(), max_size=8)  # with half surrogates, as broken output has them
json_values: st.SearchStrategy[JSON] = st.recursive(
    st.none() | st.booleans() | st.integers() | scores | anything,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(anything, inner, max_size=3),
    max_leaves=6,
)
tuples = {
    "answers": st.lists(anything, max_size=2).map(tuple),
    "tolerances": st.lists(scores, max_size=2).map(tuple),
}
code_tests = st.one_of(
    st.lists(st.builds(StdinTest, anything, anything), max_size=2),
    st.lists(st.builds(FunctionTest, st.lists(json_values, max_size=2).map(tuple), json_values), max_size=2),
    st.lists(st.builds(AssertTest, anything), max_size=2),
).map(tuple)
objects = st.dictionaries(anything, json_values, max_size=2)
gradings: dict[str, st.SearchStrategy[Grading]] = {
    "math": st.builds(MathGold, tuples["answers"], tuples["tolerances"], anything),
    "code": st.builds(CodeTests, code_tests, anything, anything, scores, st.booleans(), st.booleans()),
    "gym": st.builds(GymEntry, anything, objects, objects),
    "custom": st.builds(CustomGrader, anything, json_values),
}
tasks = st.sampled_from(sorted(gradings)).flatmap(
    lambda kind: st.builds(
        Task,
        id=anything,
        kind=st.just(kind),
        question=anything,
        grading=gradings[kind],
        source=anything,
        split=anything,
        difficulty=st.none() | scores,
        license=anything,
    )
)
faults = st.none() | st.builds(Fault, anything, anything)
rewards = st.none() | st.builds(Reward, scores, scores, scores, scores, scores, st.booleans(), anything)
calls = st.builds(
    Call,
    role=st.sampled_from(Role),
    agent=anything,
    messages=st.lists(st.dictionaries(anything, anything, max_size=2), max_size=2).map(tuple),
    text=anything,
    tokens=st.integers(0, 9999),
    advantage=st.none() | scores,
    finish=anything,
    seconds=scores,
    prompt=st.just((1, 2)),
    prompt_tokens=st.just(2),
)
executions = st.builds(
    Execution,
    calls=st.lists(calls, max_size=2),
    answer=st.none()
    | st.builds(
        FinalAnswer,
        kind=st.sampled_from(("boxed", "solution", "text")),
        value=anything,
        text=anything,
        call=st.none() | st.integers(0, 9),
    ),
    fault=faults,
    reward=rewards,
    fed=st.none() | anything,
    programs=st.lists(st.builds(ProgramOutput, call=st.integers(0, 9), output=anything), max_size=2),
    log=anything,
    seconds=scores,
)
designs = st.builds(
    Design,
    call=calls,
    script=st.none() | anything,
    executions=st.lists(executions, max_size=2),
    fault=faults,
    reward=st.none() | scores,
    pattern=anything,
)


@settings(max_examples=60, deadline=None)
@given(rollout=st.builds(Rollout, tasks, st.lists(designs, max_size=2)))
def test_any_rollout_comes_back_but_for_its_tokens(rollout: Rollout, tmp_path_factory: pytest.TempPathFactory) -> None:
    data = rollout_to_json(rollout)
    assert rollout_from_json(json.loads(json.dumps(data))) == without_tokens(rollout)
    assert rollout_from_json(data) == without_tokens(rollout)
    with Run.create(tmp_path_factory.mktemp("any") / "run", CONFIG) as run:
        run.write_step(0, {}, [rollout, rollout])
        assert run.rollouts(0) == [without_tokens(rollout)] * 2


# Foreign and damaged files


def test_a_damaged_file_is_named_with_its_line(directory: Path) -> None:
    with Run.create(directory, CONFIG) as run:
        run.write_step(0, {}, [a_rollout(), a_rollout()])
    file = directory / "rollouts" / "000000.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    call = "designs.0.executions.0.calls.0"
    for broken, said in (
        ("{]\n", "not a JSON object"),
        ("[1]\n", "not a JSON object"),
        ('{"designs": []}\n', "task: Field required"),
        (
            lines[1].replace('"executor"', '"dancer"'),
            rf"{call}.role: Input should be 'designer' or 'executor', got 'dancer'",
        ),
        (
            lines[1].replace('"tokens": 3', '"tokens": "3"'),
            rf"{call}.tokens: Input should be a valid integer, got '3'",
        ),
        (
            lines[1].replace('"math"', '"maths"'),
            "task.kind: Input should be 'math', 'code', 'gym' or 'custom', got 'maths'",
        ),
        (
            lines[1].replace('"answers": ["4"]', '"answers": [4]'),
            "task.grading.MathGold.answers.0: Input should be a valid string, got 4",
        ),
    ):
        file.write_text(lines[0] + broken)
        with pytest.raises(MetaAgentXError, match=rf"000000\.jsonl, line 2: {said}") as caught:
            Run.open(directory).rollouts(0)
        assert "\n" not in str(caught.value)


def test_a_last_line_that_was_cut_off_is_left_out(directory: Path) -> None:
    with Run.create(directory, CONFIG) as run:
        run.write_step(0, {"a": 1}, [a_rollout(), a_rollout()])
        run.write_step(1, {"a": 2}, None)
    for file in (directory / "rollouts" / "000000.jsonl", directory / "metrics.jsonl"):
        file.write_bytes(file.read_bytes()[:-3])
    assert len(run.rollouts(0)) == 1
    assert [line["step"] for line in run.metrics()] == [0]


def test_what_is_no_run_of_ours_is_refused(directory: Path) -> None:
    with pytest.raises(MetaAgentXError, match="does not exist"):
        Run.resume(directory)
    directory.mkdir(parents=True)
    with pytest.raises(MetaAgentXError, match=r"is not a run: it has no run\.json"):
        Run.resume(directory)
    Run.create(directory, CONFIG)
    for text, said in (
        ('{"format": 2}', "has format 2, and this version reads 1"),
        ("", "is damaged or not a file of a run"),
        ("[]", "is damaged or not a file of a run"),
    ):
        (directory / "run.json").write_text(text)
        with pytest.raises(MetaAgentXError, match=said):
            Run.resume(directory)


def test_an_existing_directory_is_not_overwritten(directory: Path) -> None:
    Run.create(directory, CONFIG)
    with pytest.raises(MetaAgentXError, match=r"is already a run: resume it with `metaagentx train --resume \S+first`"):
        Run.create(directory, CONFIG)
    other = directory.with_name("photos")
    other.mkdir()
    (other / "cat.png").touch()
    with pytest.raises(MetaAgentXError, match="exists and is not a run"):
        Run.create(other, CONFIG)
    assert sorted(path.name for path in directory.parent.iterdir()) == ["first", "photos"]


# Checkpoints, going back, best, fork


def test_resume_goes_back_to_the_newest_checkpoint(directory: Path) -> None:
    with Run.create(directory, CONFIG) as run:
        train(run, 5, every=2)
        finished = (directory / "metrics.jsonl").read_bytes()
    with (directory / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "rew')
    run = Run.resume(directory)
    assert (run.next_step, run.checkpoint) == (4, directory / "checkpoints" / "000004")
    assert len(run.metrics()) == 5, "nothing changes before the run is entered"
    with run:
        assert [line["step"] for line in run.metrics()] == [0, 1, 2, 3]
        assert sorted(path.stem for path in (directory / "rollouts").iterdir()) == [f"{n:06d}" for n in range(4)]
        train(run, 5)
    assert (directory / "metrics.jsonl").read_bytes() == finished


def test_without_a_checkpoint_a_run_starts_over(directory: Path) -> None:
    with Run.create(directory, CONFIG) as run:
        train(run, 3, every=10)
    with Run.resume(directory) as run:
        assert (run.next_step, run.checkpoint, run.metrics()) == (0, None, [])
        assert not list((directory / "rollouts").iterdir())


def test_a_checkpoint_restores_the_policies(directory: Path) -> None:
    with Run.create(directory, CONFIG) as run:
        asyncio.run(run.load_checkpoint(policies()))  # there is none, so nothing happens
        train(run, 4)
    fresh = policies()
    with Run.resume(directory) as run:
        asyncio.run(run.load_checkpoint(fresh))
    assert all(steps_of(policy) == [step / 7 for step in range(4)] for policy in fresh.values())
    with pytest.raises(MetaAgentXError, match="has no policy judge, only designer, executor"):
        asyncio.run(run.load_checkpoint(policies("judge")))


def test_a_state_of_an_earlier_version_is_still_loaded(directory: Path) -> None:
    with Run.create(directory, CONFIG) as run:
        train(run, 4)
    (directory / "checkpoints/000004/state.json").write_text('{"format": 1, "step": 4, "best": null, "extra": [1]}\n')
    fresh = policies()
    with Run.resume(directory) as run:
        asyncio.run(run.load_checkpoint(fresh))
    assert all(len(steps_of(policy)) == 4 for policy in fresh.values())


def test_missing_metrics_are_told(directory: Path) -> None:
    with Run.create(directory, CONFIG) as run:
        train(run, 4)
    metrics = directory / "metrics.jsonl"
    lines = metrics.read_text().splitlines(keepends=True)
    metrics.write_text("".join(lines[:3]))
    with pytest.raises(MetaAgentXError, match="ends before step 3, but there is a checkpoint of step 4"):
        Run.resume(directory)
    metrics.write_text("".join(lines[:1] + lines[2:]))
    with pytest.raises(MetaAgentXError, match="line 2: expected step 1"):
        Run.resume(directory)


def test_damaged_metrics_offer_a_way_out_that_works(directory: Path) -> None:
    with Run.create(directory, CONFIG) as run:
        train(run, 5, every=4)
    metrics = directory / "metrics.jsonl"
    lines = metrics.read_text().splitlines(keepends=True)

    def refused(text: str, said: str) -> str:
        """Damage the file; return the line to write that the message offers."""
        metrics.write_text(text)
        with pytest.raises(MetaAgentXError) as caught:
            Run.resume(directory)
        assert "\n" not in str(caught.value) and said in str(caught.value)
        assert "metrics are lost" in str(caught.value)
        return str(re.findall(r"\{.*?\}", str(caught.value))[0]) + "\n"

    # A line in the middle, a line that is gone, the end cut off: what the message says makes it whole again.
    offered = refused("".join([lines[0], "{]\n", *lines[2:]]), "line 2: not a JSON object")
    metrics.write_text("".join([lines[0], offered, *lines[2:]]))
    assert Run.resume(directory).next_step == 4
    offered = refused("".join([lines[0], *lines[2:]]), "line 2: expected step 1")
    metrics.write_text("".join([lines[0], offered, *lines[1:]][:2] + lines[2:]))
    assert Run.resume(directory).next_step == 4
    offered = refused("".join(lines[:3]) + lines[3][:9], "after line 3")
    metrics.write_text("".join(lines[:3]) + offered.replace("N", "3"))
    with Run.resume(directory) as run:
        assert [line["step"] for line in run.metrics()] == [0, 1, 2, 3]
    metrics.unlink()
    with pytest.raises(MetaAgentXError, match=r"is missing: .* for each step from 0 to 3"):
        Run.resume(directory)


def test_damage_after_the_newest_checkpoint_goes_away_with_a_resume(directory: Path) -> None:
    with Run.create(directory, CONFIG) as run:
        train(run, 5, every=4)
    metrics = directory / "metrics.jsonl"
    lines = metrics.read_text().splitlines(keepends=True)
    metrics.write_text("".join(lines[:4]) + "{]\n")
    with pytest.raises(MetaAgentXError, match=r"line 5: .* --resume \S+, which does that step again"):
        Run.open(directory).metrics()
    with Run.resume(directory) as run:
        assert [line["step"] for line in run.metrics()] == [0, 1, 2, 3]


def test_the_newest_and_the_best_checkpoints_are_kept(directory: Path) -> None:
    with Run.create(directory, CONFIG) as run:
        train(run, 2)
        run.mark_best(2, 0.75)
        train(run, 10, keep=2)
        assert list(run.checkpoints) == [2, 8, 10]
        assert run.best == Best(2, 0.75)
        with pytest.raises(MetaAgentXError, match="no checkpoint of step 4; steps with one: 2, 8, 10"):
            run.mark_best(4, 0.5)
        run.mark_best(10, 0.8)
        train(run, 12, keep=1)
        assert list(run.checkpoints) == [10, 12]


def test_a_best_step_that_was_never_saved_is_forgotten(directory: Path) -> None:
    with Run.create(directory, CONFIG) as run:
        train(run, 1, every=10)
        run.mark_best(1, 0.1)
    with Run.resume(directory) as run:
        assert run.best is None
        train(run, 1, every=10)
        run.mark_best(1, 0.1)
        asyncio.run(run.save_checkpoint(1, policies(), keep=1))
        run.write_step(1, {}, None)
        run.mark_best(2, 0.9)
    with Run.resume(directory) as run:
        assert run.best == Best(1, 0.1)


def test_a_checkpoint_may_be_saved_again(directory: Path) -> None:
    with Run.create(directory, CONFIG) as run:
        train(run, 2)
        asyncio.run(run.save_checkpoint(2, policies("judge"), keep=1))
        asyncio.run(run.load_checkpoint(policies("judge")))
        assert [path.name for path in (directory / "checkpoints").iterdir()] == ["000002"]


def test_what_was_about_to_be_replaced_is_put_back(directory: Path) -> None:
    with Run.create(directory, CONFIG) as run:
        train(run, 2)
    checkpoint = directory / "checkpoints" / "000002"
    checkpoint.rename(checkpoint.with_name(".000002.replaced"))
    with run:
        assert run.checkpoint == checkpoint


def test_a_save_that_fails_leaves_nothing(directory: Path) -> None:
    class Broken(ScriptedPolicy):
        async def save(self, path: Path) -> None:
            await super().save(path)
            raise ConnectionError("the server went away")

    with Run.create(directory, CONFIG) as run:
        with pytest.raises(ConnectionError):
            asyncio.run(run.save_checkpoint(0, {"a": ScriptedPolicy([]), "b": Broken([])}, keep=1))
        assert not list((directory / "checkpoints").iterdir())


def test_a_fork_goes_on_by_itself(directory: Path) -> None:
    with Run.create(directory, CONFIG) as run:
        train(run, 4)
        run.mark_best(4, 0.5)
        train(run, 7)
    before = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    other = directory.with_name("second")
    with pytest.raises(MetaAgentXError, match="no checkpoint of step 3; steps with one: 4, 6"):
        Run.fork(directory, 3, other)
    for step, best in ((4, None), (6, None)):
        target = other.with_name(f"second-{step}")
        with Run.fork(directory, step, target) as fork:
            assert (fork.next_step, fork.config_text, fork.best) == (step, CONFIG, best)
            assert fork.metrics() == run.metrics()[:step]
            assert list(fork.checkpoints) == [step]
            train(fork, 7)
        assert (target / "metrics.jsonl").read_bytes() == before[directory / "metrics.jsonl"]
        told = json.loads((target / "run.json").read_text())
        assert told["forked_from"] == {"run": str(directory), "step": step}
    assert before == {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    assert Run.fork(directory, 4, other, config_text="other = 1\n").config_text == "other = 1\n"


# One trainer at a time

HOLD = """
import sys, time
from pathlib import Path
from metaagentx.runs import Run
with Run.resume(Path(sys.argv[1])):
    print("in", flush=True)
    time.sleep(60)
"""


def test_a_second_trainer_is_refused_until_the_first_is_dead(directory: Path) -> None:
    run = Run.create(directory, CONFIG)
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(directory)], stdout=subprocess.PIPE)
    assert holder.stdout and holder.stdout.readline() == b"in\n"
    try:
        with pytest.raises(MetaAgentXError, match=rf"first is in use by process {holder.pid} on \S+: wait for it"):
            run.__enter__()
        assert run.metrics() == [], "reading needs no lock"
    finally:
        holder.kill()
        holder.communicate()
    with run:
        with pytest.raises(MetaAgentXError, match=f"in use by process {os.getpid()}"), Run.resume(directory):
            pass
    with run:
        pass


def test_a_run_that_cannot_be_entered_is_not_locked(directory: Path) -> None:
    run = Run.create(directory, CONFIG)
    (directory / "metrics.jsonl").rename(directory / "aside")
    with pytest.raises(MetaAgentXError, match=r"metrics\.jsonl is missing"), run:
        pass
    (directory / "aside").rename(directory / "metrics.jsonl")
    with run:
        pass


# Killed at any moment

WRITER = """
import asyncio, os, random, signal, sys, time
from pathlib import Path
from metaagentx.backends.scripted import ScriptedPolicy
from metaagentx.runs import Run
from metaagentx.types import Call, Design, MathGold, Role, Rollout, Task

STEPS = 6

async def train(run):
    policies = {"designer": ScriptedPolicy([]), "executor": ScriptedPolicy([])}
    await run.load_checkpoint(policies)
    for step in range(run.next_step, STEPS):
        for policy in policies.values():
            assert len(policy.steps) == step, (policy.steps, step)
            await policy.optim_step(step / 7)
        draw = random.Random(step)
        call = Call(Role.DESIGNER, "Designer", (), "x" * draw.randrange(20_000))
        task = Task("t", "math", "?", MathGold(("1",)), "s", "train")
        rollouts = [Rollout(task, [Design(call, None)])] * 2
        run.write_step(step, {"reward": draw.random(), "seconds": time.time()}, rollouts)
        if step % 2:
            if draw.random() < 0.5:
                run.mark_best(step + 1, draw.random())
            await run.save_checkpoint(step + 1, policies, keep=1 + step % 4 // 2)
    run.log("done")

def go_on(directory):
    run = Run.resume(directory) if (directory / "run.json").exists() else Run.create(directory, "steps = 6")
    with run:
        asyncio.run(train(run))
"""
ONCE = WRITER + 'print("ready", flush=True)\ngo_on(Path(sys.argv[1]))\n'
EVERYWHERE = (
    WRITER
    + """
CHANGES = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate"}

def changes(event, arguments):
    if event == "open":
        return arguments[2] & (os.O_WRONLY | os.O_RDWR) and "runs" in str(arguments[0])
    return event in CHANGES

def die_at(count):
    seen = 0
    def hook(event, arguments):
        nonlocal seen
        if changes(event, arguments):
            seen += 1
            if seen == count:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(hook)

def live(directory, count):
    child = os.fork()
    if child == 0:
        die_at(count)
        go_on(directory)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert status in (0, signal.SIGKILL), status
    if (directory / "run.json").exists():
        check(Run.resume(directory))
    return status == 0

def check(run):  # what can be seen of a run is whole, also before anybody goes on with it
    named = [path for path in (run.directory / "checkpoints").iterdir() if not path.name.startswith(".")]
    assert sorted(named) == list(run.checkpoints.values())
    for step, checkpoint in run.checkpoints.items():
        for name in ("designer", "executor"):
            assert len((checkpoint / name / "scripted.txt").read_text().split()) == step, checkpoint
    assert [line["step"] for line in run.metrics()] == list(range(len(run.metrics())))
    for line in run.metrics():
        assert len(run.rollouts(line["step"])) == 2

deaths = 0
while True:
    directory = Path(sys.argv[1]) / "runs" / str(deaths)
    if live(directory, deaths + 1):
        break
    live(directory, 1 + deaths % 7)  # and once more, early in the second life
    assert live(directory, 0)
    deaths += 1
print(deaths)
"""
)


def remembered(directory: Path) -> dict[str, object]:
    """All that must not depend on how often a run was killed."""
    run = Run.resume(directory)
    assert len(run.metrics()) == 6
    return {
        "metrics": re.sub(r'"seconds": [\d.e+]+', "", (directory / "metrics.jsonl").read_text()),
        "rollouts": {path.name: path.read_bytes() for path in (directory / "rollouts").iterdir()},
        "newest": {str(path.relative_to(directory)): path.read_bytes() for path in _files(run.checkpoint)},
        "best": run.best and (run.best, run.checkpoint_at(run.best.step).name),
        "top": sorted(path.name for path in directory.iterdir()),
        "remains": [path.name for path in directory.rglob(".*")],
    }


def _files(directory: Path | None) -> list[Path]:
    assert directory is not None
    return sorted(path for path in directory.rglob("*") if path.is_file())


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    directory = tmp_path_factory.mktemp("undisturbed") / "run"
    subprocess.run([sys.executable, "-c", ONCE, str(directory)], check=True, capture_output=True)
    return remembered(directory)


def test_a_run_killed_at_random_moments_ends_the_same(directory: Path, undisturbed: dict[str, object]) -> None:
    chance = random.Random(1)
    kills = 0
    for _ in range(200):
        writer = subprocess.Popen([sys.executable, "-c", ONCE, str(directory)], stdout=subprocess.PIPE)
        assert writer.stdout and writer.stdout.readline() == b"ready\n"
        try:
            assert writer.wait(timeout=chance.uniform(0, 0.03 if kills < 12 else 60)) == 0
            break
        except subprocess.TimeoutExpired:
            writer.send_signal(signal.SIGKILL)
            kills += 1
        finally:
            writer.communicate()
    assert kills
    assert remembered(directory) == undisturbed


@pytest.mark.slow
def test_a_run_killed_before_each_of_its_file_operations_ends_the_same(
    tmp_path: Path, undisturbed: dict[str, object]
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", EVERYWHERE, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 60
    for directory in (tmp_path / "runs").iterdir():
        assert remembered(directory) == undisturbed, directory.name


def test_what_a_killed_fork_left_is_no_hindrance(directory: Path) -> None:
    with Run.create(directory, CONFIG) as run:
        train(run, 2)
    remains = directory.with_name(".second.unfinished")
    (remains / "checkpoints" / "000009").mkdir(parents=True)
    (remains / "lock").write_text("1 elsewhere\n")
    assert list(Run.fork(directory, 2, directory.with_name("second")).checkpoints) == [2]
    assert not remains.exists()


# A full disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(disk)]
    try:
        mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        mounted = False
    if not mounted:
        pytest.skip("mounting a small file system is not permitted here")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


class Heavy(ScriptedPolicy):
    """Its weights do not fit."""

    async def save(self, path: Path) -> None:
        await super().save(path)
        (path / "weights").write_bytes(bytes(2_000_000))


def told(error: BaseException, what: str, step: int) -> bool:
    said = rf".*/run/{what} could not be written \(.*\): the last good state is step {step}\. "
    return (
        re.fullmatch(said + r"Fix the cause, then resume with: metaagentx train --resume \S+/run", str(error))
        is not None
    )


def test_a_full_disk_is_told_in_one_line_and_the_last_good_state_stays(small_disk: Path) -> None:
    directory = small_disk / "run"
    ballast = small_disk / "ballast"
    with Run.create(directory, CONFIG) as run:
        train(run, 3)
        with pytest.raises(MetaAgentXError) as caught:
            asyncio.run(run.save_checkpoint(3, {"designer": Heavy([])}, keep=1))
        assert told(caught.value, "checkpoints/000003", step=2), caught.value
        assert [path.name for path in (directory / "checkpoints").iterdir()] == ["000002"]
        with pytest.raises(MetaAgentXError) as caught:
            run.write_step(3, {}, [a_rollout("x" * 2_000_000)])
        assert told(caught.value, r"rollouts/000003\.jsonl", step=2), caught.value
        assert not (directory / "rollouts" / "000003.jsonl").exists()
        metrics = (directory / "metrics.jsonl").read_bytes()
        with pytest.raises(OSError, match="No space left"):
            ballast.write_bytes(bytes(2_000_000))
        with pytest.raises(MetaAgentXError) as caught:
            run.write_step(3, {"text": "x" * 10_000}, None)
        assert told(caught.value, r"metrics\.jsonl", step=2), caught.value
        assert (directory / "metrics.jsonl").read_bytes() == metrics
        with pytest.raises(MetaAgentXError) as caught:
            run.mark_best(3, 1.0)
        assert told(caught.value, "best", step=2), caught.value
        with pytest.raises(MetaAgentXError, match="nothing was created"):
            Run.fork(directory, 2, small_disk / "second")
        ballast.unlink()
        run.write_step(3, {}, None)
    with Run.resume(directory) as run:
        assert run.next_step == 2
        train(run, 4)
    assert sorted(path.name for path in small_disk.iterdir()) == ["run"]


def test_errors_of_a_library_that_is_not_python_are_told_too(small_disk: Path) -> None:
    numpy, safetensors = pytest.importorskip("numpy"), pytest.importorskip("safetensors.numpy")

    class Weights(ScriptedPolicy):
        async def save(self, path: Path) -> None:
            path.mkdir()
            safetensors.save_file({"w": numpy.zeros(500_000, dtype="float32")}, path / "model.safetensors")

    with Run.create(small_disk / "run", CONFIG) as run:
        with pytest.raises(MetaAgentXError) as caught:
            asyncio.run(run.save_checkpoint(0, {"designer": Weights([])}, keep=1))
    assert told(caught.value, "checkpoints/000000", step=0), caught.value


LIMITED = """
import resource, sys
from pathlib import Path
from metaagentx.runs import Run
run = Run.create(Path(sys.argv[1]), "")
with run:
    run.write_step(0, {"text": "x" * 3000}, None)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
    try:
        run.write_step(1, {"text": "x" * 3000}, None)
    finally:
        assert len((run.directory / "metrics.jsonl").read_bytes()) < 4000
"""


def test_half_a_line_is_taken_back(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LIMITED, str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "metrics.jsonl could not be written (File too large): the last good state is step 0" in done.stderr
    assert [line["step"] for line in Run.open(tmp_path / "run").metrics()] == [0]


# The documentation


# Places that are not as they should be


@pytest.mark.parametrize(
    ("name", "mode", "reading"),
    [
        ("", 0o700, lambda run: Run.open(run.directory)),
        ("run.json", 0o600, lambda run: Run.open(run.directory)),
        ("config.toml", 0o600, lambda run: run.config_text),
        ("metrics.jsonl", 0o600, lambda run: run.metrics()),
        ("metrics.jsonl", 0o600, lambda run: Run.resume(run.directory)),
        ("checkpoints", 0o700, lambda run: run.next_step),
        ("checkpoints/000002", 0o700, lambda run: run.checkpoint),
        ("best", 0o600, lambda run: run.best),
        ("rollouts/000000.jsonl", 0o600, lambda run: run.rollouts(0)),
        ("rollouts", 0o700, lambda run: run.rollouts(0)),
        ("lock", 0o644, lambda run: run.__enter__()),
    ],
)
def test_what_a_colleague_may_not_read_is_named_with_its_mode(
    name: str, mode: int, reading: Callable[[Run], object]
) -> None:
    with public_directory() as home:
        with Run.create(home / "run", CONFIG) as run:
            train(run, 2)
            run.mark_best(2, 0.5)
        (home / "run" / name).chmod(mode)
        said = as_nobody(lambda: reading(run))
    assert re.match(rf"refused: {re.escape(str(home / 'run'))}\S* (cannot|could not) be \w+ \(Permission denied", said)
    assert "\n" not in said
    if name != "lock":
        assert f"{'mode drwx' if mode == 0o700 else 'mode -rw-'}------, owner root): " in said
        assert f"chmod a+{'rx' if mode == 0o700 else 'r'} {home / 'run' / name}".rstrip("/") in said


def test_a_link_that_leads_nowhere_is_no_place_for_a_run(directory: Path) -> None:
    directory.parent.mkdir()
    directory.symlink_to("nothing")
    for use in (
        lambda: Run.create(directory, CONFIG),
        lambda: Run.open(directory),
        lambda: exclusive_lock(directory).__enter__(),
    ):
        with pytest.raises(MetaAgentXError, match=r"first is a symbolic link that leads nowhere \(to nothing\)"):
            use()
    assert [path.name for path in directory.parent.iterdir()] == ["first"]
    (directory.parent / "nothing").mkdir()
    Run.create(directory, CONFIG)
    assert directory.is_symlink() and Run.open(directory.parent / "nothing").config_text == CONFIG


@pytest.mark.parametrize("replaced", [False, True])
def test_a_run_that_is_moved_while_it_is_in_use_says_so(directory: Path, replaced: bool) -> None:
    with Run.create(directory, CONFIG) as run:
        train(run, 2)
        directory.rename(directory.with_name("moved"))
        if replaced:
            Run.create(directory, CONFIG)
        with pytest.raises(MetaAgentXError, match=r"first was moved or removed while it was in use: put it back"):
            train(run, 4)
        with pytest.raises(MetaAgentXError, match=r"first was moved or removed while it was in use"):
            run.mark_best(2, 0.5)
        if not replaced:
            with pytest.raises(MetaAgentXError, match=r"first was moved or removed while it was in use"):
                run.log("hello")
        run.discard()
    assert Run.open(directory.with_name("moved")).next_step == 2
    assert directory.exists() == replaced


@pytest.mark.parametrize("name", ["lock", "metrics.jsonl", "config.toml", "best", "run.json"])
def test_a_directory_where_a_file_should_be_is_one_line(directory: Path, name: str) -> None:
    run = Run.create(directory, CONFIG)
    (directory / name).unlink(missing_ok=True)
    (directory / name).mkdir()
    with pytest.raises(MetaAgentXError, match=rf"{name} is a directory|first could not be written \(Is a directory\)"):
        Run.open(directory)
        print(run.config_text, run.metrics(), run.best, run.__enter__())


def test_a_file_where_a_directory_should_be_is_one_line(directory: Path) -> None:
    run = Run.create(directory, CONFIG)
    (directory / "rollouts").rmdir()
    (directory / "rollouts").touch()
    with pytest.raises(MetaAgentXError, match=r"first could not be written \(File exists\): the last good state"), run:
        pass
    (directory / "file").touch()
    with pytest.raises(MetaAgentXError, match=r"file/run could not be written \(Not a directory\)"):
        Run.create(directory / "file" / "run", CONFIG)


# Documentation


def test_the_documentations_example_runs(tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    done = subprocess.run([sys.executable, "-c", example], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("0 0.5\n", "")


def test_the_documentation_names_every_field_and_file(directory: Path) -> None:
    with Run.create(directory, CONFIG) as run:
        train(run, 2)
        run.mark_best(2, 0.5)
        run.log("done")
    for path in directory.iterdir():
        assert f"`{path.name}" in PAGE or f"  {path.name}" in PAGE, path.name

    def names(value: object) -> set[str]:
        if isinstance(value, list):
            return set().union(*map(names, value))
        if isinstance(value, dict):
            return set(value) | set().union(*map(names, value.values()))
        return set()

    code = replace(a_rollout().task, kind="code", grading=CodeTests((StdinTest("", ""), AssertTest(""))))
    saved = [rollout_to_json(tree) for tree in (a_rollout(), Rollout(code))]
    known = names(json.loads(json.dumps(saved)))
    words = set(re.findall(r"[a-z_]+", PAGE))
    assert known <= words, known - words


def test_the_package_is_not_taken_for_a_run_directory() -> None:
    """`runs/` without a leading slash would keep src/metaagentx/runs out of commits, wheels and the linter."""
    ignored = (Path(__file__).parents[2] / ".gitignore").read_text().split()
    assert "runs/" not in ignored and "runs" not in ignored, "write /runs/ in .gitignore"
