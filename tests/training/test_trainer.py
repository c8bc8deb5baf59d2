"""The loop end to end: what each step grows, who learns from it and who does not, and what it goes on after."""

import asyncio
import io
import re
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from metaagentx.backends.local.build import build_policies
from metaagentx.backends.model_files import model_directory
from metaagentx.config import Config, load_config, to_toml
from metaagentx.errors import MetaAgentXError
from metaagentx.options import LossConfig
from metaagentx.policy import DEFAULT_LOSS, BackendError, Datum, LossName, Metrics
from metaagentx.progress import TrainingProgress
from metaagentx.rewards.errors import GraderUnavailable
from metaagentx.rewards.graders import Graders
from metaagentx.rollout.tree import Resources
from metaagentx.runs import Best, Run
from metaagentx.sandbox import Sandbox, SandboxUnavailable
from metaagentx.training.batching import calls_of
from metaagentx.types import FinalAnswer, Grade, Role, Task
from tests.rollout_helpers import RIGHT, WRONG, Actor, Reply, design, in_words, resources
from tests.tiny_model import GUESS, QUESTIONS, THINK, school_once, write_recipe
from tests.training_runs import timeless, train, trainer_of

SMALL = ["rollout.designs=2", "rollout.executions=2", "tasks.per_step=2"]
BY_TURNS = "{ steps = 1, executor = 1e-3 }, { steps = 1, designer = 2e-3 }"
EXECUTOR = "{ steps = 1, executor = 1e-3 }"
JOINT = "{ steps = 1, executor = 1e-3, designer = 1e-3 }"

Training = Callable[[Config, Mapping[Role, Actor]], Run]


def config_of(directory: Path, *settings: str, steps: int, stages: str, model: Path | None = None) -> Config:
    """For a model, or for actors, whose tokens are bytes."""
    directory.mkdir(exist_ok=True)
    recipe = write_recipe(directory, model or "none", steps=steps, stages=stages, tasks=8)
    long = [] if model else ["rollout.designer_tokens=4096", "rollout.executor_tokens=4096"]
    return load_config(recipe, [*SMALL, *long, *settings])


@pytest.fixture
def shared(sandbox: Sandbox, graders: Graders) -> Resources:
    return resources(Actor(""), Actor(""), sandbox, graders)


@pytest.fixture
def trained(tmp_path: Path, runner: asyncio.Runner, shared: Resources) -> Training:
    """Train actors in a run of their own."""

    def go(config: Config, actors: Mapping[Role, Actor]) -> Run:
        return runner.run(train(config, actors, shared, tmp_path / "run"))

    return go


def by_seed(*texts: str) -> Reply:
    return lambda conversation, seed: texts[seed % len(texts)]


def by_turns(*texts: str) -> Reply:
    waiting = [*texts]

    def reply(conversation: list[dict[str, str]], seed: int) -> str:
        waiting.append(waiting.pop(0))
        return waiting[-1]

    return reply


def by_prompt(conversation: list[dict[str, str]], seed: int) -> str:
    return RIGHT if conversation[0]["content"].startswith("Think.") else WRONG


def actors(designer: Reply | str, executor: Reply | str) -> dict[Role, Actor]:
    return {Role.DESIGNER: Actor(designer), Role.EXECUTOR: Actor(executor)}


# What a step is, and who learns in it


def test_a_step_is_what_the_script_says_and_each_role_learns_in_its_stage_only(
    tmp_path: Path, trained: Training
) -> None:
    config = config_of(tmp_path, "tasks.per_step=1", steps=2, stages=BY_TURNS)
    made = actors(by_turns(design(THINK), design(GUESS)), by_prompt)
    run = trained(config, made)
    for step in range(2):
        (tree,) = run.rollouts(step)
        assert [one.script for one in tree.designs] == [THINK.strip("\n"), GUESS.strip("\n")]
        assert [one.reward for one in tree.designs] == [1.0, 0.0]
        assert [one.call.advantage for one in tree.designs] == [
            pytest.approx(1.0, abs=1e-5),
            pytest.approx(-1, abs=1e-5),
        ]
        right = (["Solver"], r"\boxed{14}", 0, None, 1.0)
        wrong = (["Solver"], r"\boxed{9}", 0, None, 0.0)
        assert [[in_words(run) for run in one.executions] for one in tree.designs] == [[right] * 2, [wrong] * 2]
        calls = [execution.calls[0] for one in tree.designs for execution in one.executions]
        assert [call.advantage for call in calls] == pytest.approx([1.0, 1.0, -1.0, -1.0], abs=1e-5)

    designer, executor = made[Role.DESIGNER], made[Role.EXECUTOR]
    assert (executor.steps, designer.steps) == ([1e-3], [2e-3])
    texts = [executor.tokenizer.decode(datum.tokens) for datum in executor.trained_on]
    assert [RIGHT in text for text in texts] == [True, True, False, False]
    assert [datum.advantage for datum in executor.trained_on] == pytest.approx([1.0, 1.0, -1.0, -1.0], abs=1e-5)
    assert [GUESS in designer.tokenizer.decode(datum.tokens) for datum in designer.trained_on] == [False, True]
    for datum in (*executor.trained_on, *designer.trained_on):
        assert datum.logprobs is not None
        sampled = [logprob for logprob, weight in zip(datum.logprobs, datum.weights, strict=True) if weight]
        assert sampled == [-0.25 - place / 1000 for place in range(len(sampled))], "as they were when it was sampled"
    first, second = run.metrics()
    assert (first["learning_rate/executor"], second["learning_rate/designer"]) == (1e-3, 2e-3)
    assert "learning_rate/designer" not in first and "learning_rate/executor" not in second
    assert "designer/loss" not in first and "executor/loss" not in second


def test_a_step_without_spread_teaches_nothing(tmp_path: Path, trained: Training) -> None:
    made = actors(design(THINK), RIGHT)
    run = trained(config_of(tmp_path, steps=2, stages=JOINT), made)
    assert [policy.steps + policy.trained_on for policy in made.values()] == [[], []]
    assert [line["groups/executor_flat"] for line in run.metrics()] == [1.0, 1.0]


def test_several_updates_a_step_see_each_datum_once(tmp_path: Path, trained: Training) -> None:
    made = actors(by_turns(design(THINK), design(GUESS)), by_prompt)
    config = config_of(tmp_path, "optimizer.updates_per_step=2", "tasks.per_step=4", steps=3, stages=BY_TURNS)
    run = trained(config, made)
    assert made[Role.EXECUTOR].steps == [1e-3] * 4, "two in step 0, two in step 2"
    assert made[Role.DESIGNER].steps == [2e-3] * 2
    assert len(made[Role.EXECUTOR].trained_on) == 2 * 4 * 4
    assert len(made[Role.DESIGNER].trained_on) == 4 * 2
    first = [
        made[Role.EXECUTOR].tokenizer.read_chat(datum.tokens)[1]["content"] for datum in made[Role.EXECUTOR].trained_on
    ]
    assert Counter(first[:16]) == {tree.task.question: 4 for tree in run.rollouts(0)}


def test_mini_batches_are_samples_and_not_tasks(tmp_path: Path, trained: Training) -> None:
    settings = ["optimizer.minibatch=3", "tasks.per_step=4", "stages.0.epochs=2"]
    made = actors(by_turns(design(THINK), design(GUESS)), by_prompt)
    run = trained(config_of(tmp_path, *settings, steps=2, stages=JOINT), made)
    assert made[Role.DESIGNER].steps == [1e-3] * 3 * 2 * 2, "8 designs: mini-batches of 2, 3 and 3"
    assert made[Role.EXECUTOR].steps == [1e-3] * 6 * 2 * 2, "16 calls: six mini-batches"
    taught = made[Role.EXECUTOR].trained_on
    in_tree = sorted(one.advantage or 0 for one in calls_of(Role.EXECUTOR, run.rollouts(0)))
    for epoch in (taught[:16], taught[16:32]):
        assert len({datum.tokens for datum in epoch}) == 8, "on each task, those of both designs"
        assert sorted(datum.advantage for datum in epoch) == in_tree, "advantages are those of whole groups"
    assert taught[:16] != taught[16:32], "another order in each epoch"
    first, _ = run.metrics()
    assert (first["designer/updates"], first["executor/updates"]) == (6, 12)
    assert "gradients/cosine" not in first
    (tmp_path / "run").rename(tmp_path / "before")
    again = actors(by_turns(design(THINK), design(GUESS)), by_prompt)
    trained(config_of(tmp_path, *settings, steps=2, stages=JOINT), again)
    assert again[Role.EXECUTOR].trained_on == taught, "the order is that of the seed"


def test_a_stage_may_go_over_its_data_several_times(tmp_path: Path, trained: Training) -> None:
    made = actors(by_turns(design(THINK), design(GUESS)), by_prompt)
    config = config_of(tmp_path, "stages.0.epochs=3", steps=2, stages=BY_TURNS)
    trained(config, made)
    assert made[Role.EXECUTOR].steps == [1e-3] * 3
    assert made[Role.DESIGNER].steps == [2e-3], "the other stage goes over them once"
    taught = made[Role.EXECUTOR].trained_on
    assert taught[: len(taught) // 3] * 3 == taught


def test_an_anchor_keeps_the_replies_of_the_other_role_likely(tmp_path: Path, trained: Training) -> None:
    """In a stage of the Executor it is taught the Designer's sound replies as well, in the same optimizer steps."""
    made = actors(by_turns(design(THINK), design(GUESS), "no script"), by_prompt)
    settings = ["stages.0.anchor=0.5", "stages.1.anchor=0.0", "tasks.per_step=3", "rollout.designs=3"]
    run = trained(config_of(tmp_path, *settings, steps=2, stages=BY_TURNS), made)
    assert made[Role.EXECUTOR].steps == [1e-3], "no step more than without"
    designs = [design for tree in run.rollouts(0) for design in tree.designs]
    sound = [each.call for each in designs if each.fault is None]
    assert 0 < len(sound) < len(designs)
    own = [call for call in calls_of(Role.EXECUTOR, run.rollouts(0)) if call.advantage is not None]
    taught = made[Role.EXECUTOR].trained_on
    assert [datum.advantage for datum in taught[len(own) :]] == [0.5] * len(sound)
    first, second = run.metrics()
    assert first["anchor/sequences"] == len(sound)
    assert not [name for name in second if name.startswith("anchor/")]


@pytest.mark.parametrize("setting", ['model.sharing="separate"', "stages.0.designer=1e-3"])
def test_where_nothing_is_frozen_on_shared_weights_there_is_no_anchor(
    setting: str, tmp_path: Path, trained: Training
) -> None:
    made = actors(by_turns(design(THINK), design(GUESS)), by_prompt)
    run = trained(config_of(tmp_path, setting, "stages.0.anchor=0.5", steps=1, stages=BY_TURNS), made)
    assert not [name for name in run.metrics()[0] if name.startswith("anchor/")]
    own = [call for call in calls_of(Role.EXECUTOR, run.rollouts(0)) if call.advantage is not None]
    assert len(made[Role.EXECUTOR].trained_on) == len(own)


def always_right_on(*flat: str) -> Reply:
    def reply(conversation: list[dict[str, str]], seed: int) -> str:
        return RIGHT if conversation[-1]["content"] in flat else [RIGHT, WRONG][seed % 2]

    return reply


def test_tasks_without_spread_are_redrawn(tmp_path: Path, trained: Training) -> None:
    settings = ["rollout.executions=8", "tasks.per_step=4"]
    flat = always_right_on(*QUESTIONS)
    plain = trained(config_of(tmp_path, *settings, steps=2, stages=EXECUTOR), actors(design(THINK), flat))
    assert max(float(str(line["groups/executor_flat"])) for line in plain.metrics()) >= 0.5
    (tmp_path / "run").rename(tmp_path / "plain")
    config = config_of(tmp_path, *settings, "rollout.redraws=9", steps=2, stages=EXECUTOR)
    redrawn = trained(config, actors(design(THINK), flat))
    assert [line["groups/executor_flat"] for line in redrawn.metrics()] == [0.0, 0.0]
    assert all(tree.task.question not in QUESTIONS for step in range(2) for tree in redrawn.rollouts(step))


def test_redrawing_ends(tmp_path: Path, trained: Training) -> None:
    made = actors(design(THINK), RIGHT)
    run = trained(config_of(tmp_path, "rollout.redraws=3", steps=1, stages=EXECUTOR), made)
    assert len(made[Role.EXECUTOR].asked) == (1 + 3) * 2 * 2 * 2
    assert (len(run.rollouts(0)), made[Role.EXECUTOR].steps) == (2, [])


# On weights


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return school_once(tmp_path_factory)


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.mark.parametrize("sharing", ["separate", "lora", "shared"])
def test_a_role_that_does_not_learn_stays_as_it_was_to_the_bit(
    sharing: str, model: Path, tmp_path: Path, runner: asyncio.Runner, shared: Resources
) -> None:
    settings = [f"model.sharing={sharing}", "rollout.designs=4", "run.checkpoint_every=1", "run.keep_checkpoints=2"]
    settings += ["model.lora_rank=4"] * (sharing == "lora")
    config = config_of(tmp_path, *settings, steps=2, stages=BY_TURNS, model=model)
    built = build_policies(config.model, tmp_path, config.seed, config.optimizer)
    for role, policy in built.policies.items():
        runner.run(policy.save(tmp_path / "states" / "000000" / role))
    run = runner.run(train(config, built.policies, shared, tmp_path / "run"))
    places = [tmp_path / "states" / "000000", *run.checkpoints.values()]
    assert len(places) == 3
    designer, executor = (
        [contents(model_directory(place / role)) | contents(place / role) for place in places]
        for role in ("designer", "executor")
    )
    weights = "adapter_model.safetensors" if sharing == "lora" else "model.safetensors"
    optimizer = "training/optimizer.safetensors"
    for learnt, (before, after) in ((executor, (0, 1)), (designer, (1, 2))):
        assert all(learnt[before][name] != learnt[after][name] for name in (weights, optimizer))
    for frozen, (before, after) in ((designer, (0, 1)), (executor, (1, 2))):
        if sharing == "shared":
            for state in (frozen[before], frozen[after]):
                del state[weights]
        assert frozen[before] == frozen[after]


def test_joint_learning_on_shared_weights_compares_the_gradients(
    model: Path, tmp_path: Path, runner: asyncio.Runner, shared: Resources
) -> None:
    for sharing in ("shared", "separate"):
        here = tmp_path / sharing
        settings = [f"model.sharing={sharing}", "rollout.designs=4", "rollout.executions=4"]
        config = config_of(here, *settings, steps=1, stages=JOINT, model=model)
        run = runner.run(train(config, build_policies(config.model, here, config.seed).policies, shared, here / "run"))
        (line,) = run.metrics()
        assert float(str(line["designer/grad_norm"])) > 0 and float(str(line["executor/grad_norm"])) > 0
        if sharing == "shared":
            assert -1 < float(str(line["gradients/cosine"])) < 1
        else:
            assert "gradients/cosine" not in line
        trees = run.rollouts(0)
        calls = [design.call for tree in trees for design in tree.designs if design.call]
        calls += [
            call for tree in trees for design in tree.designs for done in design.executions for call in done.calls
        ]
        assert line["engine/sampled_tokens"] == sum(call.tokens for call in calls), "of all samplers, each counted once"


def test_a_request_for_which_there_is_no_memory_stops_the_run_with_one_line_and_it_can_be_resumed(
    model: Path, tmp_path: Path, runner: asyncio.Runner, shared: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ["model.sharing=separate", "run.checkpoint_every=1", "rollout.designs=4", "rollout.executions=4"]
    config = config_of(tmp_path, *settings, steps=2, stages=EXECUTOR, model=model)
    policies = build_policies(config.model, tmp_path, config.seed).policies
    executor = policies[Role.EXECUTOR]
    decode = executor.engine._decode_step.run

    def limited(*inputs: Any) -> Any:
        if executor.model.version:
            raise MemoryError
        return decode(*inputs)

    monkeypatch.setattr(executor.engine._decode_step, "run", limited)
    with pytest.raises(MetaAgentXError, match=r"^out of memory while sampling a single request, at \d+ tokens: use "):
        runner.run(train(config, policies, shared, tmp_path / "run"))
    policies = build_policies(config.model, tmp_path, config.seed).policies
    assert len(runner.run(train(config, policies, shared, tmp_path / "run")).metrics()) == 2


def test_mini_batches_on_weights(model: Path, tmp_path: Path, runner: asyncio.Runner, shared: Resources) -> None:
    """One mini-batch with everything is the plain update; smaller ones are means over their own tokens."""
    lines = {}
    for size in (0, 10_000, 4):
        here = tmp_path / str(size)
        settings = ["rollout.designs=4", "rollout.executions=4", *([f"optimizer.minibatch={size}"] if size else [])]
        # A small rate: the later mini-batches are of a model that has hardly changed.
        config = config_of(here, *settings, steps=1, stages="{ steps = 1, executor = 1e-6 }", model=model)
        policies = build_policies(config.model, here, config.seed, config.optimizer).policies
        (lines[size],) = runner.run(train(config, policies, shared, here / "run")).metrics()
    plain, whole, small = ({name: float(str(lines[size][f"executor/{name}"])) for name in
                            ("loss", "grad_norm", "tokens", "sequences", "ratio", "advantage_std")}
                           for size in (0, 10_000, 4))  # fmt: skip
    assert whole == pytest.approx(plain, rel=1e-4, abs=1e-6)
    assert "executor/updates" not in lines[0] and lines[10_000]["executor/updates"] == 1
    updates = float(str(lines[4]["executor/updates"]))
    assert updates == -(-plain["sequences"] // 4) > 1
    assert (small["tokens"], small["sequences"]) == (plain["tokens"], plain["sequences"])
    assert small["grad_norm"] > plain["grad_norm"] / 2, "each is a mean over a mini-batch, not a share of the step's"


def documented(name: str, page: str) -> bool:
    """Whether a row of the page names this metric, parts in angle brackets standing for any text."""
    rows = re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE)
    return any(re.fullmatch(re.sub(r"<\w+>", ".+", row), name) for row in rows)


def test_a_kl_term_and_all_metrics_of_a_run_are_documented(
    model: Path, tmp_path: Path, runner: asyncio.Runner, shared: Resources
) -> None:
    settings = ["loss.kl=0.1", "evaluation.every=1", "evaluation.tasks=2", "tasks.held_out=2", "rollout.designs=4"]
    config = config_of(tmp_path, *settings, steps=2, stages=JOINT, model=model)
    built = build_policies(config.model, tmp_path, config.seed, with_reference=True)
    assert built.references is not None
    run = runner.run(train(config, built.policies, shared, tmp_path / "run", built.references))
    first, second = run.metrics()
    assert float(str(first["executor/kl"])) == pytest.approx(0, abs=1e-4), "the reference is where it began"
    assert float(str(second["executor/kl"])) > 2e-4
    page = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text().partition("\n## Other")[0]
    names = {name for line in run.metrics() for name in line} - {"format", "step"}
    assert {"gradients/cosine", "evaluation/solved", "seconds/evaluation", "designer/grad_norm"} <= names
    assert not [name for name in sorted(names) if not documented(name, page)]


def test_a_run_that_memory_stops_says_what_to_do_and_resumes(
    model: Path, tmp_path: Path, runner: asyncio.Runner, shared: Resources
) -> None:
    """After it has done what it could: smaller micro-batches, then activation checkpointing."""
    settings = ["rollout.designs=4", "run.checkpoint_every=1"]
    config = config_of(tmp_path, *settings, steps=2, stages=BY_TURNS, model=model)
    ends = []
    for fails in (False, True):
        directory = tmp_path / f"run-{fails}"
        policies = build_policies(config.model, tmp_path, config.seed, config.optimizer).policies
        if fails:

            def run_out(_: torch.Tensor) -> None:
                raise torch.OutOfMemoryError("CUDA out of memory")

            policies[Role.DESIGNER].model.module.lm_head.weight.register_hook(run_out)
            line = (
                r"out of memory on a single sequence of \d+ tokens, which no optimizer.token_budget \(now \d+\) makes "
                r"smaller: lower rollout.designer_tokens .* resume with: metaagentx train --resume .*run-True"
            )
            with pytest.raises(MetaAgentXError, match=line):
                runner.run(train(config, policies, shared, directory))
            policies = build_policies(config.model, tmp_path, config.seed, config.optimizer).policies
        run = runner.run(train(config, policies, shared, directory))
        ends.append([timeless(line) for line in run.metrics()])
    assert ends[0] == ends[1]


# Evaluation


class Ageing(Actor):
    """Solves held-out tasks as well as its age in steps says; of the others half."""

    def __init__(self, held_out: Sequence[str], right_at: Mapping[int, int]) -> None:
        super().__init__(self._say)
        self._held_out, self._right_at = held_out, right_at

    def _say(self, conversation: list[dict[str, str]], seed: int) -> str:
        question = conversation[-1]["content"]
        if question not in self._held_out:
            return [RIGHT, WRONG][seed % 2]
        return RIGHT if self._held_out.index(question) < self._right_at[len(self.steps)] else WRONG


def test_the_best_checkpoint_is_chosen_on_held_out_tasks(tmp_path: Path, trained: Training) -> None:
    settings = ["evaluation.every=2", "evaluation.tasks=3", "tasks.held_out=3", "rollout.executions=8"]
    config = config_of(tmp_path, *settings, "run.keep_checkpoints=1", steps=7, stages=EXECUTOR)
    held_out = [task.question for task in config.load_tasks().held_out]
    executor = Ageing(held_out, {2: 1, 4: 3, 6: 3, 7: 2})
    run = trained(config, {Role.DESIGNER: Actor(design(THINK)), Role.EXECUTOR: executor})
    scores = {line["step"]: line["evaluation/solved"] for line in run.metrics() if "evaluation/solved" in line}
    assert scores == {1: pytest.approx(1 / 3), 3: 1.0, 5: 1.0, 6: pytest.approx(2 / 3)}
    assert run.best == Best(4, 1.0), "of equals the earliest"
    assert list(run.checkpoints) == [4, 7], "the best stays, and the newest"
    learnt_from = {tree.task.question for step in range(7) for tree in run.rollouts(step)}
    assert len(held_out) == 3 and not learnt_from & set(held_out)


def test_a_design_that_cannot_run_weighs_as_much_as_one_that_can(tmp_path: Path, trained: Training) -> None:
    def by_board(conversation: list[dict[str, str]], seed: int) -> str:
        return "I cannot." if conversation[-1]["content"].endswith(held_out[0]) else design(THINK)

    settings = ["evaluation.every=1", "evaluation.tasks=2", "evaluation.samples=3", "tasks.held_out=2"]
    config = config_of(tmp_path, *settings, steps=1, stages=EXECUTOR)
    held_out = [task.question for task in config.load_tasks().held_out]
    assert trained(config, actors(by_board, RIGHT)).metrics()[0]["evaluation/solved"] == 0.5


# Machinery that fails


class Every:
    """Fails each so many-th time."""

    def __init__(self, count: int, error: Callable[[], Exception]) -> None:
        self.failed = self._calls = 0
        self._count, self._error = count, error

    async def __call__(self, _: object = None) -> None:
        self._calls += 1
        if self._calls % self._count == 0:
            self.failed += 1
            raise self._error()


class ShakyGraders(Graders):
    def __init__(self, graders: Graders, failing: Every) -> None:
        super().__init__()
        self._graders, self._failing = graders, failing

    async def grade(self, task: Task, answer: FinalAnswer | None, strict: bool = True) -> Grade:
        await self._failing()
        return await self._graders.grade(task, answer, strict)


class ShakySandbox(Sandbox):
    def __init__(self, failing: Every) -> None:
        super().__init__(max_runs=64, warm=0)
        self._failing = failing

    async def _run_job(self, *args, **options):  # type: ignore[no-untyped-def]
        await self._failing()
        return await super()._run_job(*args, **options)


@pytest.mark.parametrize("retries", [0, 2])
def test_faults_of_ours_are_counted_and_never_become_a_reward(
    retries: int, tmp_path: Path, runner: asyncio.Runner, graders: Graders, trained: Training
) -> None:
    replies = by_seed(design(THINK), design(GUESS)), by_seed(RIGHT, WRONG)
    settings = ["rollout.designs=4", "rollout.executions=4", f"rollout.retries={retries}"]
    config = config_of(tmp_path, *settings, steps=3, stages=BY_TURNS)
    whole = trained(config, actors(*replies))
    backend = Every(20, lambda: BackendError("the connection was reset"))
    sandbox_fails = Every(20, lambda: SandboxUnavailable("the fork server did not start: no memory"))
    grader_fails = Every(20, lambda: GraderUnavailable("the worker died"))
    made = {Role.DESIGNER: Actor(replies[0], backend), Role.EXECUTOR: Actor(replies[1], backend)}

    async def disturbed() -> Run:
        async with ShakySandbox(sandbox_fails) as sandbox:
            shaky = resources(Actor(""), Actor(""), sandbox, ShakyGraders(graders, grader_fails))
            return await train(config, made, shaky, tmp_path / "disturbed")

    run = runner.run(disturbed())
    failures = [failing.failed for failing in (backend, sandbox_fails, grader_fails)]
    assert min(failures) >= 3
    if retries:
        assert [timeless(line) for line in run.metrics()] == [timeless(line) for line in whole.metrics()]
        return
    assert sum(float(str(line["faults/infra"])) for line in run.metrics()) == sum(failures)
    judged = {Role.DESIGNER: 0, Role.EXECUTOR: 0}
    for step, role in enumerate((Role.EXECUTOR, Role.DESIGNER, Role.EXECUTOR)):
        for tree, other in zip(run.rollouts(step), whole.rollouts(step), strict=True):
            for one, twin in zip(tree.designs, other.designs, strict=True):
                judged[role] += role is Role.DESIGNER and one.call.advantage is not None
                if one.fault is not None:
                    assert (one.fault.kind, one.reward, one.call.advantage, one.executions) == ("infra", None, None, [])
                for execution, original in zip(one.executions, twin.executions, strict=False):
                    if execution.fault is not None:
                        assert (execution.fault.kind, execution.reward) == ("infra", None)
                        assert all(call.advantage is None for call in execution.calls)
                    else:
                        assert execution.reward == original.reward
                        judged[role] += role is Role.EXECUTOR and execution.calls[0].advantage is not None
    assert {role: len(policy.trained_on) for role, policy in made.items()} == judged


def gone_after(calls: int, hangs: bool) -> Callable[[int], Coroutine[None, None, None]]:
    async def before(count: int) -> None:
        if count > calls and hangs:
            await asyncio.sleep(600)
        if count > calls:
            raise BackendError("the server is away")

    return before


@pytest.mark.parametrize("hangs", [False, True])
@pytest.mark.parametrize("role", Role)
def test_a_backend_that_is_gone_stops_the_run_in_one_line_and_the_run_goes_on_when_it_is_back(
    hangs: bool, role: Role, tmp_path: Path, trained: Training
) -> None:
    settings = ["rollout.sample_seconds=0.3", "rollout.retries=1", "run.checkpoint_every=1"]
    config = config_of(tmp_path, *settings, steps=4, stages=BY_TURNS)
    made = actors(by_seed(design(THINK), design(GUESS)), by_prompt)
    per_step = 2 * 2 * (1 if role is Role.DESIGNER else 2)
    made[role] = Actor(made[role]._answer, gone_after(2 * per_step, hangs))
    started = time.perf_counter()
    with pytest.raises(MetaAgentXError) as caught:
        trained(config, made)
    assert time.perf_counter() - started < 15
    told = "no reply within 0.3 s" if hangs else "the server is away"
    assert re.fullmatch(
        rf"every execution failed with an infrastructure fault .*{told}\)\. "
        r"Fix the cause, then resume with: metaagentx train --resume \S+/run",
        str(caught.value),
    )
    run = trained(config, actors(by_seed(design(THINK), design(GUESS)), by_prompt))
    assert (run.next_step, len(run.metrics())) == (4, 4)


class Forgetful(Actor):
    """Samples, but cannot learn."""

    async def forward_backward(
        self, data: Sequence[Datum], loss: LossName, options: LossConfig = DEFAULT_LOSS, temperature: float = 1.0
    ) -> Metrics:
        raise BackendError("the trainer's server is away")


def test_a_backend_that_is_gone_while_learning_is_told_in_one_line_too(tmp_path: Path, trained: Training) -> None:
    made = {Role.DESIGNER: Actor(by_turns(design(THINK), design(GUESS))), Role.EXECUTOR: Forgetful(by_prompt)}
    with pytest.raises(MetaAgentXError, match=r"the trainer's server is away\. Fix the cause, then resume with: "):
        trained(config_of(tmp_path, steps=1, stages=EXECUTOR), made)


# What a person sees


def test_each_step_and_each_evaluation_is_a_line_on_plain_output(
    tmp_path: Path, runner: asyncio.Runner, shared: Resources
) -> None:
    screen = io.StringIO()
    settings = ["evaluation.every=2", "evaluation.tasks=2", "tasks.held_out=2"]
    config = config_of(tmp_path, *settings, steps=2, stages=BY_TURNS)
    made = actors(by_turns(design(THINK), design(GUESS)), by_prompt)
    with Run.create(tmp_path / "run", to_toml(config)) as run, TrainingProgress(2, 0, Console(file=screen)) as progress:
        runner.run(trainer_of(config, made, shared, run, progress).train())
    first, evaluation, second = screen.getvalue().splitlines()
    assert first.startswith("step 1/2 executor learns · reward 0.50 (executor) 0.50 (designer) · solved 50 % · ")
    assert evaluation == "step 2/2 evaluation 0.500"
    assert second.startswith("step 2/2 designer learns · reward 0.50 (executor) 0.50 (designer) · solved 50 % · ")


# When no design can run


def shown(runner: asyncio.Runner, config: Config, made: Mapping[Role, Actor], shared: Resources, run: Run) -> list[str]:
    """What training prints, with the error it ends in."""
    screen = io.StringIO()
    try:
        with run, TrainingProgress(config.steps, run.next_step, Console(file=screen)) as progress, run.training():
            runner.run(trainer_of(config, made, shared, run, progress).train())
    except MetaAgentXError as error:
        screen.write(str(error))
    return screen.getvalue().splitlines()


def test_a_run_in_which_no_design_can_run_says_so_at_once_and_stops(
    tmp_path: Path, runner: asyncio.Runner, shared: Resources
) -> None:
    config = config_of(tmp_path, steps=5, stages=JOINT)
    made = actors("I have no idea.", RIGHT)
    lines = shown(runner, config, made, shared, Run.create(tmp_path / "run", to_toml(config)))
    why = "(first: no_script: there is no script: write it between <code> and </code>)"
    cure = "A model that does not know the workflow language needs a cold start and SFT first: see docs/coldstart.md"
    said = f"no design of step 1 could run {why}. {cure}"
    assert [line for line in lines if "could run" in line][:-1] == [said]
    assert lines.index(said) == 0 and len(lines) == 1 + 3 + 1
    stopped = f"no design of the last 3 steps could run {why}, so nothing was learned. {cure}."
    assert lines[-1].startswith(stopped) and "run.stop_after_failed_steps" in lines[-1]
    assert f"metaagentx train --resume {tmp_path / 'run'}" in lines[-1]
    run = Run.resume(tmp_path / "run")
    assert said in (run.directory / "log.txt").read_text()
    assert run.next_step == len(run.metrics()) == 3
    # It goes on from there: with a better model, to its end.
    shown(runner, config, actors(by_turns(design(THINK), design(GUESS)), by_prompt), shared, run)
    assert run.next_step == 5


@pytest.mark.parametrize(("steps", "works", "told"), [(6, 3, 2), (4, 9, 1)])
def test_steps_without_a_design_do_not_stop_a_run_that_recovers_or_is_told_to_go_on(
    steps: int, works: int, told: int, tmp_path: Path, runner: asyncio.Runner, shared: Resources
) -> None:
    """Every third step works; or none does, and the recipe says to go on."""
    replies = [design(THINK) if (place // 4) % works == works - 1 else "no" for place in range(4 * steps)]
    setting = "run.stop_after_failed_steps=0" if works > steps else "run.stop_after_failed_steps=3"
    config = config_of(tmp_path, setting, steps=steps, stages=JOINT)
    run = Run.create(tmp_path / "run", to_toml(config))
    lines = shown(runner, config, actors(by_turns(*replies), by_prompt), shared, run)
    assert run.next_step == steps
    assert sum("could run" in line for line in lines) == told


def test_replies_that_are_cut_off_are_told_apart(tmp_path: Path, runner: asyncio.Runner, shared: Resources) -> None:
    settings = ["rollout.designer_tokens=20", "run.stop_after_failed_steps=1"]
    config = config_of(tmp_path, *settings, steps=2, stages=JOINT)
    run = Run.create(tmp_path / "run", to_toml(config))
    lines = shown(runner, config, actors(design(THINK), RIGHT), shared, run)
    assert "4 of 4 replies were cut off: raise rollout.designer_tokens, which is 20" in lines[0]
