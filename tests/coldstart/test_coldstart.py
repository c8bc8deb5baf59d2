"""A teacher's rollouts become chats to learn from, and a model learns from them."""

import asyncio
import json
import random
import re
import shutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaagentx.atomic import exclusive_lock
from metaagentx.backends.local import LocalPolicy, load_model, new_model
from metaagentx.cli.quickstart_parts import TEACHER_MIXTURE
from metaagentx.coldstart.collect import CollectOptions, collect_demonstrations
from metaagentx.coldstart.demonstrations import (
    Demonstration,
    TeacherUsage,
    balance,
    deduplicate,
    read_rows,
    trim,
    write_rows,
)
from metaagentx.coldstart.programmed_teacher import ProgrammedTeacher, design
from metaagentx.coldstart.sft import SftOptions, fine_tune, join_turns, learning_rate_at, row_datum
from metaagentx.config import RolloutConfig
from metaagentx.errors import MetaAgentXError
from metaagentx.evaluation.designs import FIXED_DESIGNS
from metaagentx.policy import ChatModel, Datum
from metaagentx.rewards.graders import Graders
from metaagentx.rollout.sampling import RoleSampler
from metaagentx.rollout.tree import Resources, RolloutOptions
from metaagentx.sandbox import Sandbox
from metaagentx.tasks import Mixture
from metaagentx.types import FinalAnswer, GymEntry, Role
from metaagentx.workflow.protocol import last_boxed
from metaagentx.workflow.reply import DESIGN_REQUEST, DESIGNER_LINE, parse_reply
from metaagentx.workflow.validate import validate
from tests.commands import command

TASKS = Mixture(TEACHER_MIXTURE, seed=0, held_out=9)


@pytest.fixture
def resources(sandbox: Sandbox, graders: Graders) -> Resources:
    teacher: ChatModel = ProgrammedTeacher()
    samplers = {role: RoleSampler(role, teacher, 4096) for role in Role}
    return Resources(samplers, sandbox, graders, asyncio.Semaphore(16))


async def collect(
    resources: Resources, count: int, directory: Path, targets: Mapping[Role, int] | None = None
) -> tuple[list[Demonstration], TeacherUsage]:
    """Demonstrations of the first tasks, in batches of six."""
    tasks = [TASKS.task(index) for index in range(count)]
    options = CollectOptions(tasks=TEACHER_MIXTURE, seed=0, batch=6, targets=targets or {})
    rollout = RolloutOptions(RolloutConfig(designs=2, executions=1))
    return await collect_demonstrations(tasks, resources, rollout, options, directory)


def row(**changes: object) -> Demonstration:
    messages = ({"role": "user", "content": "q"}, {"role": "assistant", "content": "a"})
    return replace(Demonstration(messages, Role.EXECUTOR, "t", "s", "single", "x"), **changes)  # type: ignore[arg-type]


def test_only_what_solved_its_task_is_kept_and_under_the_short_prompt(
    runner: asyncio.Runner, resources: Resources, tmp_path: Path
) -> None:
    rows, usage = runner.run(collect(resources, 18, tmp_path))
    assert (usage.tasks, usage.executions) == (18, 36)
    assert 0 < usage.solved < 36, "an imperfect teacher"
    from metaagentx.coldstart.families import family_of

    questions = {task.id: task for task in (TASKS.task(place) for place in range(18))}
    for kept in rows:
        task, reply = questions[kept.task], kept.messages[-1]["content"]
        assert isinstance(task.grading, GymEntry)
        if kept.role is Role.DESIGNER:
            assert [dict(message) for message in kept.messages[:-1]] == [
                {"role": "system", "content": DESIGNER_LINE},
                {"role": "user", "content": DESIGN_REQUEST + task.question},
            ]
            script = parse_reply(reply).script
            assert script is not None and validate(script) == []
        elif "```python" not in reply and kept.pattern.startswith("single"):  # in others, a wrong agent may be outdone
            family, match = family_of(task.question)
            assert last_boxed(reply) == family.answer(match)


def test_a_stopped_collection_resumes_with_the_next_batch(
    runner: asyncio.Runner, resources: Resources, tmp_path: Path
) -> None:
    rows, usage = runner.run(collect(resources, 12, tmp_path / "whole"))
    runner.run(collect(resources, 6, tmp_path / "parts"))
    first = (tmp_path / "parts" / "batch-00000.jsonl").read_text()
    assert runner.run(collect(resources, 12, tmp_path / "parts")) == (rows, usage)
    assert (tmp_path / "parts" / "batch-00000.jsonl").read_text() == first


def test_enough_rows_end_a_collection_and_a_stop_changes_nothing(
    runner: asyncio.Runner, resources: Resources, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Targets are reached after some batches; then as many rows are kept, and of a resumed collection the same ones."""
    targets = {Role.DESIGNER: 5, Role.EXECUTOR: 6}
    rows, usage = runner.run(collect(resources, 60, tmp_path, targets))
    assert Counter(row.role for row in rows) == targets and usage.tasks < 60
    assert re.search(r"designer rows \d+ of 5 · executor rows \d+ of 6", capfd.readouterr().err)
    (last,) = sorted(tmp_path.iterdir())[-1:]
    last.unlink()
    assert runner.run(collect(resources, 60, tmp_path, targets)) == (rows, usage)
    more, larger_usage = runner.run(collect(resources, 60, tmp_path, targets | {Role.EXECUTOR: 24}))
    assert larger_usage.tasks > usage.tasks, "with a higher target it continues"
    assert Counter(row.role for row in more) == {Role.DESIGNER: 5, Role.EXECUTOR: 24}


@given(st.lists(st.sampled_from([*Role]), max_size=40), st.integers(1, 10))
def test_rows_are_taken_evenly(roles: list[Role], target: int) -> None:
    rows = [row(role=role, task=str(place)) for place, role in enumerate(roles)]
    kept = trim(rows, {Role.DESIGNER: target})
    assert [r for r in kept if r.role is Role.EXECUTOR] == [r for r in rows if r.role is Role.EXECUTOR]
    had, has = ([r for r in some if r.role is Role.DESIGNER] for some in (rows, kept))
    assert len(has) == min(len(had), target) and kept == [r for r in rows if r in kept]
    places = [had.index(r) for r in has]
    assert all(abs(place - number * len(had) / len(has)) < 1 for number, place in enumerate(places))
    assert trim(rows, {}) == rows


def test_rows_come_back_as_they_were_written(tmp_path: Path) -> None:
    """Also with what Python takes for the end of a line and JSON does not."""
    lines = tuple({"role": role, "content": "one\u2028two\x85three\x1cfour"} for role in ("user", "assistant"))
    rows = [row(), row(role=Role.DESIGNER, pattern="ensemble", task="ümlaut"), row(messages=lines)]
    write_rows(tmp_path / "rows.jsonl", rows)
    assert read_rows(tmp_path / "rows.jsonl") == rows


@pytest.mark.parametrize(
    "line",
    ["no json", "[]", '{"role": "executor"}', '{"messages": [], "role": "executor"}',
     '{"messages": [{"role": "user", "content": "q"}], "role": "executor"}',
     '{"messages": [{"role": "assistant", "content": "a"}], "role": "nobody"}'],
)  # fmt: skip
def test_a_bad_row_is_named_with_its_line(line: str, tmp_path: Path) -> None:
    good = json.dumps({"messages": [{"role": "assistant", "content": "a"}], "role": "executor"})
    (tmp_path / "rows.jsonl").write_text(f"{good}\n{line}\n")
    with pytest.raises(MetaAgentXError, match=r"rows.jsonl, line 2") as caught:
        read_rows(tmp_path / "rows.jsonl")
    assert "\n" not in str(caught.value)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(["x", "y", "z"]), st.integers(0, 3)), max_size=40))
def test_balanced_rows_give_no_design_more_than_its_share(drawn: list[tuple[str, str, int]]) -> None:
    rows = deduplicate([row(source=s, pattern=p, messages=_chat(s, p, n)) for s, p, n in drawn])
    assert len({json.dumps(r.messages) for r in rows}) == len(rows) == len(set(drawn))
    kept = balance(rows)
    for source in {r.source for r in rows}:
        had = [sum(r.pattern == p for r in rows if r.source == source) for p in "xyz"]
        has = [sum(r.pattern == p for r in kept if r.source == source) for p in "xyz"]
        present = [count for count in had if count]
        mean = -(-sum(present) // len(present))
        assert has == [min(count, mean) for count in had]


def _chat(*parts: object) -> tuple[dict[str, str], ...]:
    return ({"role": "user", "content": repr(parts)}, {"role": "assistant", "content": "a"})


def test_the_teacher_knows_the_answers_of_its_families(runner: asyncio.Runner, graders: Graders) -> None:
    from metaagentx.coldstart.families import family_of

    for place in range(90):
        task = TASKS.task(place)
        family, match = family_of(task.question)
        answer = family.answer(match)
        grade = runner.run(graders.grade(task, FinalAnswer.parse(rf"\boxed{{{answer}}}")))
        assert grade.solved, (task.question, answer)


def test_every_design_of_the_teacher_is_valid_and_they_differ() -> None:
    assert all(validate(script) == [] for script in FIXED_DESIGNS.values())
    question = TASKS.task(0).question
    drawn = [parse_reply(design(question, random.Random(seed))).script or "" for seed in range(200)]
    assert all(validate(script) == [] for script in drawn)
    assert len(set(drawn)) > 90
    patterns = {pattern for script in drawn for pattern in re.findall(r'Workflow\(name="(\w+)"\)', script)}
    assert patterns == {"single", "tool", "vote", "reflection", "plan"}


def small_model(path: Path, rows: list[Demonstration]) -> LocalPolicy:
    if not path.exists():
        new_model(path, "nano", 0, [message["content"] for kept in rows for message in kept.messages])
    return LocalPolicy(load_model(path), Role.DESIGNER)


def chats() -> list[Demonstration]:
    texts = [(Role.DESIGNER, "design", "<code>x</code>"), (Role.EXECUTOR, "solve", "<delivery>4</delivery>")]
    return [
        row(role=role, messages=({"role": "user", "content": f"{asked} {n}"}, {"role": "assistant", "content": said}))
        for role, asked, said in texts
        for n in range(20)
    ]


def test_sft_lowers_the_loss_and_resumes_after_a_stop_to_the_same_weights(
    runner: asyncio.Runner, tmp_path: Path
) -> None:
    rows = chats()
    options = SftOptions(steps=8, rows_per_step=8, learning_rate=3e-3, warmup_steps=2, checkpoint_every=3)
    whole = small_model(tmp_path / "model", rows)
    losses = runner.run(fine_tune(whole, rows, options, tmp_path / "whole"))
    assert losses[-1] < losses[0] / 2

    class Stopped(Exception):
        pass

    stopped = small_model(tmp_path / "model", rows)
    step, taken = stopped.optim_step, 0

    async def stop_at_five(rate: float) -> object:
        nonlocal taken
        taken += 1
        if taken == 5:
            raise Stopped
        return await step(rate)

    stopped.optim_step = stop_at_five  # type: ignore[method-assign, assignment]
    with pytest.raises(Stopped):
        runner.run(fine_tune(stopped, rows, options, tmp_path / "parts"))
    again = small_model(tmp_path / "model", rows)
    assert runner.run(fine_tune(again, rows, options, tmp_path / "parts")) == losses
    ours, theirs = (policy.model.module.state_dict() for policy in (whole, again))
    assert all(bool((ours[name] == theirs[name]).all()) for name in ours)


def test_only_replies_are_learned(tmp_path: Path) -> None:
    rows = chats()
    policy = small_model(tmp_path / "model", rows)
    datum = row_datum(policy, rows[0])
    learned = [token for token, weight in zip(datum.tokens, datum.weights, strict=True) if weight]
    assert policy.tokenizer.decode(learned) == "<code>x</code>"
    assert learned == policy.tokenizer.encode_reply("<code>x</code>")
    assert set(datum.weights) == {0.0, 1.0}


def test_the_turns_of_a_conversation_are_learned_in_one_pass() -> None:
    def datum(tokens: str, weights: str) -> Datum:
        return Datum(tuple(map(ord, tokens)), tuple(map(float, weights)))

    rows = [datum("qa", "01"), datum("qb", "01"), datum("qarc", "0001"), datum("qard", "0001"), datum("xy", "01")]
    joined = [datum("qb", "01"), datum("qarc", "0101"), datum("qard", "0001"), datum("xy", "01")]
    assert join_turns(rows) == joined
    assert join_turns(rows[::-1]) == joined[::-1]


def test_the_learning_rate_rises_then_falls() -> None:
    options = SftOptions(steps=100, learning_rate=1.0, warmup_steps=10)
    rates = [learning_rate_at(step, options) for step in range(100)]
    assert rates[:10] == sorted(rates[:10]) and rates[9] == 1.0
    assert rates[10:] == sorted(rates[10:], reverse=True) and rates[-1] == pytest.approx(0.1)


def test_a_role_without_rows_is_named(runner: asyncio.Runner, tmp_path: Path) -> None:
    rows = [kept for kept in chats() if kept.role is Role.EXECUTOR]
    with pytest.raises(MetaAgentXError, match="no rows of the designer"):
        runner.run(fine_tune(small_model(tmp_path / "model", rows), rows, SftOptions(steps=1), tmp_path / "work"))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"losses": "x"}', '{"losses": [null]}'])
def test_a_damaged_state_is_named_in_one_line(text: str, runner: asyncio.Runner, tmp_path: Path) -> None:
    rows = chats()
    work = tmp_path / "work"
    work.mkdir()
    (work / "state.json").write_text(text)
    with pytest.raises(MetaAgentXError, match=r"state.json is damaged") as caught:
        runner.run(fine_tune(small_model(tmp_path / "model", rows), rows, SftOptions(steps=1), work))
    assert "\n" not in str(caught.value)


USAGE = '{"tasks": 1, "executions": 1, "solved": 1, "prompt_tokens": 0, "completion_tokens": 0}'
LIES = ["", "[]", "{}x", "[" * 100_000, '{"tasks": 1, "others": 2}', '{"tasks": "many"}', '{"solved": null}']
LIES += [
    f"{USAGE}\n{line}" for line in ("{}", "[]", '{"messages": [], "role": "executor"}', '{"messages": 1, "role": 2}')
]


@pytest.mark.parametrize("lie", LIES)
def test_a_damaged_batch_is_named_in_one_line(
    lie: str, runner: asyncio.Runner, resources: Resources, tmp_path: Path
) -> None:
    (tmp_path / "batch-00000.jsonl").write_text(lie)
    with pytest.raises(MetaAgentXError, match=r"batch-00000\.jsonl") as caught:
        runner.run(collect(resources, 6, tmp_path))
    assert "\n" not in str(caught.value)


def test_rows_that_are_no_text_are_named_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_bytes(b"\xff\xfe")
    with pytest.raises(MetaAgentXError, match=r"rows\.jsonl is not UTF-8 text"):
        read_rows(tmp_path / "rows.jsonl")


def test_the_commands_teach_a_model(tmp_path: Path) -> None:
    """From tasks to a taught model as a user does it, in a directory with a space."""
    place = tmp_path / "a place"
    source = "gym:products?min_digits=1&max_digits=2"
    asked = ["coldstart", source, "--out", place, "--count", 12]
    kept = command(*asked)
    assert kept.returncode == 0, kept.stderr
    assert re.search(r"coldstart\.jsonl: \d+ rows kept; 12 executions, \d+% solved", kept.stdout)
    words = ["sft", place / "coldstart.jsonl", "--model", "preset:nano", "--out", place / "model"]
    taught = command(*words, "--steps", 12, "--rows-per-step", 8, "--learning-rate", 3e-3)
    assert taught.returncode == 0, taught.stderr
    first, last = map(float, re.findall(r"loss ([\d.]+) at the first step, ([\d.]+) at the last", taught.stdout)[0])
    assert last < first - 1
    for refused, said in (
        ([*asked, "--seed", 1], f"{place} was made with seed = 0, now 1: use the same or another --out"),
        ([*words, "--seed", 1], f"{place / 'model.work'} was made with steps = 12, now 200 (and "),
    ):
        shutil.rmtree(place / "model", ignore_errors=True)
        other = command(*refused)
        assert (other.returncode, other.stderr.count("\n")) == (2, 1), other.stderr
        assert other.stderr.startswith(f"metaagentx: {said}"), other.stderr
    with exclusive_lock(place), exclusive_lock(place / "other.work"):
        for refused in (["coldstart", source, "--out", place], [*words[:-1], place / "other"]):
            busy = command(*refused)
            assert (busy.returncode, "is in use by process" in busy.stderr) == (2, True), busy.stderr
            assert "Traceback" not in busy.stderr
    (tmp_path / "odd" / "lock").mkdir(parents=True)
    odd = command("coldstart", source, "--out", tmp_path / "odd")
    assert (odd.returncode, odd.stderr.count("\n"), "lock should be a file" in odd.stderr) == (2, 1, True), odd.stderr
