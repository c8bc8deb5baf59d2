"""Machinery that fails under a rollout: it goes on, and no fault of ours becomes a reward."""

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable

import pytest

from metaagentx.config import CreditConfig, RolloutConfig
from metaagentx.errors import MetaAgentXError
from metaagentx.policy import BackendError
from metaagentx.rewards.errors import GraderUnavailable
from metaagentx.rewards.graders import Graders
from metaagentx.rollout.evidence import Evidence
from metaagentx.rollout.executor import run_script
from metaagentx.rollout.sampling import RoleSampler
from metaagentx.rollout.tree import Resources, RolloutOptions, rollout_batch
from metaagentx.sandbox import Sandbox, SandboxUnavailable
from metaagentx.training.credit import assign_credit
from metaagentx.training.metrics import step_metrics
from metaagentx.types import Fault, FinalAnswer, Grade, Role, Rollout, Task
from tests.rollout_helpers import (
    COMPUTE,
    HEAD,
    RIGHT,
    RUN,
    SINGLE,
    TASK,
    TOOL,
    WRONG,
    Actor,
    design,
    executions_of,
    resources,
    timeless,
    with_speakers,
)

TREE = RolloutOptions(RolloutConfig(designs=4, executions=4))
IMPATIENT = RolloutOptions(RolloutConfig(designs=4, executions=4, retries=0))


def told_by_seed(conversation: list[dict[str, str]], seed: int) -> str:
    if "You design" in conversation[0]["content"]:
        return design([SINGLE, TOOL][seed % 2])
    if "Compute." in conversation[0]["content"] and conversation[-1]["content"] == TASK.question:
        return COMPUTE
    return [RIGHT, WRONG][seed % 2]


class EveryTwentieth:
    """Fails each twentieth time it is called: 5 %."""

    def __init__(self) -> None:
        self.failed = 0
        self._count = 0

    async def __call__(self, _: int) -> None:
        self._count += 1
        if self._count % 20 == 0:
            self.failed += 1
            raise BackendError("the connection was reset")


def undisturbed(runner: asyncio.Runner, sandbox: Sandbox, graders: Graders) -> list[Rollout]:
    shared = resources(Actor(told_by_seed), Actor(told_by_seed), sandbox, graders)
    return runner.run(rollout_batch([TASK] * 4, shared, TREE, ("test",)))


def check_infra(rollouts: list[Rollout]) -> int:
    """How many infra faults there are, after a look that none of them has a reward or teaches anything."""
    for rollout in rollouts:
        assign_credit(rollout, CreditConfig())
    found = 0
    for rollout in rollouts:
        for one in rollout.designs:
            if one.fault and one.fault.infra:
                found += 1
                assert (one.reward, one.call.advantage, one.executions) == (None, None, [])
            for execution in one.executions:
                if execution.fault and execution.fault.infra:
                    found += 1
                    assert execution.reward is None
                    assert all(call.advantage is None for call in execution.calls)
                else:
                    assert execution.reward is not None
    assert step_metrics(rollouts)["faults/infra"] == found
    return found


def test_a_backend_that_fails_now_and_then_changes_nothing(
    runner: asyncio.Runner, sandbox: Sandbox, graders: Graders
) -> None:
    failing = EveryTwentieth()
    shared = resources(Actor(told_by_seed, failing), Actor(told_by_seed, failing), sandbox, graders)
    trees = runner.run(rollout_batch([TASK] * 4, shared, TREE, ("test",)))
    assert failing.failed >= 4
    assert check_infra(trees) == 0
    assert timeless(trees) == timeless(_credited(undisturbed(runner, sandbox, graders)))


def _credited(rollouts: list[Rollout]) -> list[Rollout]:
    check_infra(rollouts)
    return rollouts


def test_without_retries_each_failure_is_one_infra_fault_and_the_rest_goes_on(
    runner: asyncio.Runner, sandbox: Sandbox, graders: Graders
) -> None:
    failing = EveryTwentieth()
    shared = resources(Actor(told_by_seed), Actor(told_by_seed, failing), sandbox, graders)
    trees = runner.run(rollout_batch([TASK] * 4, with_speakers(shared), IMPATIENT, ("test",)))
    assert check_infra(trees) == failing.failed >= 3
    for spoilt, whole in zip(executions_of(trees), executions_of(undisturbed(runner, sandbox, graders)), strict=True):
        if spoilt.reward is not None:
            assert (spoilt.reward, spoilt.answer) == (whole.reward, whole.answer)


def test_a_designer_that_fails_loses_its_design_and_no_other(
    runner: asyncio.Runner, sandbox: Sandbox, graders: Graders
) -> None:
    async def second_fails(count: int) -> None:
        if count == 2:
            raise BackendError("the connection was reset")

    shared = with_speakers(resources(Actor(design(SINGLE), second_fails), Actor(RIGHT), sandbox, graders))
    trees = runner.run(rollout_batch([TASK], shared, IMPATIENT, ("test",)))
    assert check_infra(trees) == 1
    assert [one.reward for one in trees[0].designs] == [pytest.approx(1.8), None, *[pytest.approx(1.8)] * 2]
    assert len(executions_of(trees)) == 12


# --- graders


class Shaky(Graders):
    """Some grades fail, by their number."""

    def __init__(self, graders: Graders, every: int) -> None:
        super().__init__()
        self._graders, self._every = graders, every
        self.count = 0

    async def grade(self, task: Task, answer: FinalAnswer | None, strict: bool = True) -> Grade:
        self.count += 1
        if self.count % self._every == 0:
            raise GraderUnavailable("the worker died")
        return await self._graders.grade(task, answer, strict)


def test_a_grade_that_fails_is_asked_for_again_and_the_script_is_not_run_again(
    runner: asyncio.Runner, sandbox: Sandbox, graders: Graders
) -> None:
    executor, shaky = Actor(told_by_seed), Shaky(graders, 3)
    trees = runner.run(
        rollout_batch([TASK] * 2, resources(Actor(design(SINGLE)), executor, sandbox, shaky), TREE, ("test",))
    )
    assert check_infra(trees) == 0
    assert len(executor.asked) == 32
    assert shaky.count == 32 + shaky.count // 3


def test_without_retries_a_grade_that_fails_is_an_infra_fault(
    runner: asyncio.Runner, sandbox: Sandbox, graders: Graders
) -> None:
    shared = resources(Actor(design(SINGLE)), Actor(told_by_seed), sandbox, Shaky(graders, 3))
    trees = runner.run(rollout_batch([TASK] * 2, shared, IMPATIENT, ("test",)))
    assert check_infra(trees) == 32 // 3
    faults = [execution.fault.message for execution in executions_of(trees) if execution.fault]
    assert set(faults) == {"the grader failed 1 times: the worker died"}


# --- the sandbox


class Murder:
    """Kills a fork server in the middle of things, once."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox

    async def __call__(self, count: int) -> None:
        if count == 20:
            process = self.sandbox._servers[0]._process
            assert process is not None
            os.kill(process.pid, signal.SIGKILL)
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("retries", [0, 2])
def test_a_fork_server_that_is_killed_takes_no_reward_with_it(
    retries: int, runner: asyncio.Runner, sandbox: Sandbox, graders: Graders
) -> None:
    async def attempt() -> list[Rollout]:
        async with Sandbox(max_runs=64, servers=2) as own:
            shared = resources(Actor(told_by_seed), Actor(told_by_seed, Murder(own)), own, graders)
            options = RolloutOptions(RolloutConfig(designs=4, executions=4, retries=retries))
            return await rollout_batch([TASK] * 4, shared, options, ("test",))

    trees = runner.run(attempt())
    infra = check_infra(trees)
    if retries:
        assert infra == 0
        assert timeless(trees) == timeless(_credited(undisturbed(runner, sandbox, graders)))
    else:
        assert 0 < infra < 64
        messages = {execution.fault.message for execution in executions_of(trees) if execution.fault}
        assert messages == {"the fork server died"}


class Gone(Sandbox):
    """A sandbox whose servers do not come back."""

    def _take_child(self) -> None:
        return None

    async def _wait_for_child(self):  # type: ignore[no-untyped-def]
        raise SandboxUnavailable("the fork server did not start: no memory")


def test_a_sandbox_that_does_not_start_is_an_infra_fault(runner: asyncio.Runner, graders: Graders) -> None:
    async def attempt() -> None:
        async with Gone(max_runs=8, warm=0) as gone:
            await rollout_batch([TASK], resources(Actor(design(SINGLE)), Actor(RIGHT), gone, graders), TREE, ("test",))

    with pytest.raises(
        MetaAgentXError, match=r"infrastructure fault \(16 in all; first: the fork server did not start"
    ):
        runner.run(attempt())


# --- when nothing works


async def refuse(count: int) -> None:
    raise BackendError("no model is loaded")


async def hang(count: int) -> None:
    await asyncio.sleep(600)


def test_a_designer_that_always_fails_stops_the_run_with_one_clear_error(
    runner: asyncio.Runner, sandbox: Sandbox, graders: Graders
) -> None:
    shared = resources(Actor(RIGHT, refuse), Actor(RIGHT), sandbox, graders)
    started = time.perf_counter()
    message = r"infrastructure fault \(8 in all; first: .*3 attempts: no model is loaded"
    with pytest.raises(MetaAgentXError, match=message):
        runner.run(rollout_batch([TASK] * 2, shared, TREE, ("test",)))
    assert time.perf_counter() - started < 10


def test_an_executor_that_always_fails_does_so_too(runner: asyncio.Runner, sandbox: Sandbox, graders: Graders) -> None:
    shared = with_speakers(resources(Actor(design(SINGLE)), Actor(RIGHT, refuse), sandbox, graders))
    with pytest.raises(MetaAgentXError, match=r"infrastructure fault \(16 in all; first: .*no model is loaded"):
        runner.run(rollout_batch([TASK], shared, TREE, ("test",)))


@pytest.mark.parametrize("who", ["designer", "executor"])
def test_a_backend_that_hangs_is_cut_at_its_deadline(
    who: str, runner: asyncio.Runner, sandbox: Sandbox, graders: Graders
) -> None:
    designer = Actor(design(SINGLE), hang if who == "designer" else None)
    executor = Actor(RIGHT, hang if who == "executor" else None)
    shared = with_speakers(resources(designer, executor, sandbox, graders), seconds=0.3)
    started = time.perf_counter()
    with pytest.raises(MetaAgentXError, match=f"the {who} got no reply after 1 attempts: no reply within 0.3 s"):
        runner.run(rollout_batch([TASK], shared, IMPATIENT, ("test",)))
    assert time.perf_counter() - started < 10


@pytest.mark.parametrize("before", [hang, refuse])
def test_a_call_that_failed_as_often_as_it_may_is_not_asked_again_by_its_execution(
    before: Callable[[int], Awaitable[None]], runner: asyncio.Runner, sandbox: Sandbox, graders: Graders
) -> None:
    executor = Actor(RIGHT, before)
    shared = with_speakers(resources(Actor(design(SINGLE)), executor, sandbox, graders), seconds=0.1, retries=1)
    with pytest.raises(MetaAgentXError, match=r"infrastructure fault \(16 in all; first: .* after 2 attempts"):
        runner.run(rollout_batch([TASK], shared, TREE, ("test",)))
    assert len(executor.asked) == 16 * 2


SLEEPS = HEAD + "import time\ntime.sleep(20)\nworkflow.add_node(AgentNode('Solver', 'Solve.'))" + RUN
CHATS = (
    HEAD
    + "import time\nworkflow.add_node(AgentNode('Solver', 'Solve.'))\n"
    + "while True:\n    time.sleep(0.3)\n    workflow.run(question)\n"
)


PROGRAMS = (
    HEAD
    + "import subprocess, sys\nworkflow.add_node(AgentNode('Solver', 'Solve.'))\n"
    + "while True:\n    subprocess.run([sys.executable, '-c', 'import time; time.sleep(0.4)'])\n"
    + RUN
)


@pytest.mark.parametrize(
    ("script", "kind", "said"),
    [
        (SLEEPS, "wall", "slept for more than 0.25 s in total"),
        (CHATS, "wall", "slept for more than 0.25 s in total"),
        (PROGRAMS, "budget", "it and its programs slept for more than 0.25 s in total"),
    ],
    ids=["sleeps", "sleeps between calls", "runs programs that sleep"],
)
def test_a_script_that_is_late_by_its_own_doing_is_no_infra_fault(
    script: str, kind: str, said: str, runner: asyncio.Runner, sandbox: Sandbox, graders: Graders
) -> None:
    options = RolloutOptions(RolloutConfig(designs=1, executions=2, execution_seconds=1.0))
    trees = runner.run(
        rollout_batch([TASK], resources(Actor(design(script)), Actor(RIGHT), sandbox, graders), options, ("t",))
    )
    for execution in executions_of(trees):
        assert execution.fault == Fault(kind, said)
        assert execution.reward is not None and execution.reward.total == 0


def test_all_tries_of_an_execution_share_one_deadline(runner: asyncio.Runner, graders: Graders) -> None:
    class Slow(Sandbox):
        """A sandbox that takes its time to fail."""

        def _take_child(self) -> None:
            return None

        async def _wait_for_child(self):  # type: ignore[no-untyped-def]
            await asyncio.sleep(0.4)
            raise SandboxUnavailable("the fork server did not start: no memory")

    async def attempt() -> None:
        options = RolloutOptions(RolloutConfig(designs=1, executions=1, execution_seconds=1.0, retries=100))
        async with Slow(max_runs=8, warm=0) as slow:
            await rollout_batch(
                [TASK], resources(Actor(design(SINGLE)), Actor(RIGHT), slow, graders), options, ("test",)
            )

    with pytest.raises(MetaAgentXError, match=r"infrastructure fault \(1 in all; first: no fork server within"):
        runner.run(attempt())


def hanging_now_and_then(sandbox: Sandbox, graders: Graders) -> Resources:
    async def third_hangs(count: int) -> None:
        if count % 3 == 0:
            await hang(count)

    return resources(Actor(design(SINGLE)), Actor(RIGHT, third_hangs), sandbox, graders)


def test_an_execution_that_is_not_done_in_time_is_an_infra_fault_and_the_others_go_on(
    runner: asyncio.Runner, sandbox: Sandbox, graders: Graders
) -> None:
    options = RolloutOptions(RolloutConfig(designs=4, executions=4, retries=0, execution_seconds=5.0))
    trees = runner.run(rollout_batch([TASK], hanging_now_and_then(sandbox, graders), options, ("test",)))
    assert check_infra(trees) == 5
    messages = {execution.fault.message for execution in executions_of(trees) if execution.fault}
    assert messages == {"not done after 5 s, with 0 calls answered"}


def test_a_call_that_hangs_is_asked_again(runner: asyncio.Runner, sandbox: Sandbox, graders: Graders) -> None:
    shared = with_speakers(hanging_now_and_then(sandbox, graders), seconds=0.5, retries=3)
    trees = runner.run(rollout_batch([TASK], shared, IMPATIENT, ("test",)))
    assert check_infra(trees) == 0


TALKS = HEAD + "workflow.add_node(AgentNode('Solver', 'Solve.'))\nwhile True:\n    workflow.run(question)\n"


def test_a_script_that_makes_too_many_calls_for_its_time_is_at_fault_itself(
    runner: asyncio.Runner, sandbox: Sandbox, graders: Graders
) -> None:
    """Each call is answered in good time. A backend that took a quarter of the time for one of them would be."""

    async def a_while(count: int) -> None:
        await asyncio.sleep(0.1)

    options = RolloutOptions(RolloutConfig(designs=1, executions=2, calls=1000, execution_seconds=2.0))
    shared = resources(Actor(design(TALKS)), Actor(RIGHT, a_while), sandbox, graders)
    trees = runner.run(rollout_batch([TASK], shared, options, ("t",)))
    for execution in executions_of(trees):
        assert execution.fault is not None and execution.fault.kind == "wall", execution.fault
        assert execution.reward is not None and execution.reward.total == 0


def test_a_script_that_is_late_after_one_slow_call_is_not_at_fault(
    runner: asyncio.Runner, sandbox: Sandbox, graders: Graders
) -> None:
    """Such as one that waited for room in the backend; that it was answered at last does not make up for the time."""

    async def first_is_slow(count: int) -> None:
        await asyncio.sleep(0.7 if count == 1 else 0.1)

    shared = resources(Actor(design(TALKS)), Actor(RIGHT, first_is_slow), sandbox, graders)
    limits = RolloutConfig(calls=1000, execution_seconds=2.0)
    execution = runner.run(run_script(TALKS, TASK, shared.samplers[Role.EXECUTOR], sandbox, limits, ("t",)))
    assert len(execution.calls) > 1
    assert execution.fault is not None and execution.fault.kind == "infra", execution.fault


@pytest.mark.parametrize("at_once", [16, 6])
def test_a_script_whose_own_calls_slow_each_other_down_is_at_fault_itself(
    at_once: int, runner: asyncio.Runner, sandbox: Sandbox, graders: Graders
) -> None:
    """The backend answers one request after the other, each in a fifth of the time that would be evidence."""
    members = f"[AgentNode(f'Solver{{index}}', 'Solve.') for index in range({at_once})]"
    script = HEAD + (
        "from workflow import EnsembleNode\n"
        f"workflow.add_node(EnsembleNode('Vote', {members}))\n"
        "while True:\n    workflow.run(question)\n"
    )
    one = asyncio.Lock()

    async def one_at_a_time(count: int) -> None:
        async with one:
            await asyncio.sleep(0.1)

    limits = RolloutConfig(calls=1000, execution_seconds=2.0)
    shared = resources(Actor(design(script)), Actor(RIGHT, one_at_a_time), sandbox, graders)
    execution = runner.run(run_script(script, TASK, shared.samplers[Role.EXECUTOR], sandbox, limits, ("t",)))
    assert execution.fault is not None and execution.fault.kind == "wall", execution.fault


class OneAtATime:
    """A backend that answers one request after the other."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._turn = asyncio.Lock()

    async def __call__(self, count: int) -> None:
        async with self._turn:
            await asyncio.sleep(self._seconds)


def at_once(count: int, then: str) -> str:
    """A script that makes so many calls at once, and then does something else."""
    members = f"[AgentNode(f'Solver{{index}}', 'Solve.') for index in range({count})]"
    return HEAD + f"import time\nworkflow.add_node(EnsembleNode('Vote', {members}))\nworkflow.run(question)\n{then}"


@pytest.mark.parametrize(
    "then",
    [
        "time.sleep(0.45)\nwhile True: pass\n",
        "while True:\n    workflow.run(question)\n",
        "time.sleep(0.4)\nraise SystemExit",
    ],
    ids=["rests", "continues", "ends"],
)
def test_many_calls_at_once_bring_no_infra_fault_about_whatever_the_script_does_next(
    then: str, runner: asyncio.Runner, sandbox: Sandbox, graders: Graders
) -> None:
    """With the timeouts of a recipe: eight calls at once take longer than one attempt may take."""
    limits = RolloutConfig(calls=1000, execution_seconds=2.0, cpu_seconds=0.5)
    sampler = RoleSampler(Role.EXECUTOR, Actor(RIGHT, OneAtATime(0.1)), 100, attempt_seconds=limits.attempt_seconds)
    execution = runner.run(run_script(at_once(15, then), TASK, sampler, sandbox, limits, ("t",)))
    assert execution.fault is not None and not execution.fault.infra, execution.fault
    assert len(execution.calls) >= 14


def test_agents_side_by_side_on_a_backend_that_is_slow_by_itself_are_not_at_fault(
    runner: asyncio.Runner, sandbox: Sandbox
) -> None:
    """Each call takes a third of the time, however few there are."""

    async def slow(count: int) -> None:
        await asyncio.sleep(0.7)

    limits = RolloutConfig(execution_seconds=2.0, cpu_seconds=0.5)
    sampler = RoleSampler(Role.EXECUTOR, Actor(RIGHT, slow), 100, attempt_seconds=limits.attempt_seconds)
    execution = runner.run(run_script(at_once(6, ""), TASK, sampler, sandbox, limits, ("t",)))
    assert execution.fault is not None and execution.fault.infra, execution.fault


@pytest.mark.parametrize(
    ("spans", "seconds"),
    [
        ([], 0.0),
        ([(0, 3)], 3.0),
        ([(0, 1), (2, 3)], 1.0),  # nothing was under way between them
        ([(0, 8)] * 8, 1.0),  # all together
        ([(0, index + 1) for index in range(8)], 1.0),  # one after the other
        ([(index, index + 8) for index in range(50)], 1.14),  # always eight
        ([(0, 1)] * 7 + [(0, 9)], 8.0),  # one hangs
        ([(0, 4), (1, 4)], 2.0),
    ],
)
def test_the_time_of_a_call_is_that_of_calls_under_way_by_their_number(
    spans: list[tuple[float, float]], seconds: float
) -> None:
    evidence = Evidence()
    evidence._spans = list(spans)
    assert evidence.shows(max(seconds - 0.01, 1e-9)) == bool(spans)
    assert not evidence.shows(seconds + 0.01)


def test_calls_side_by_side_on_a_backend_that_hangs_are_not_the_scripts_fault(
    runner: asyncio.Runner, sandbox: Sandbox
) -> None:
    members = "[AgentNode(f'Solver{index}', 'Solve.') for index in range(6)]"
    script = HEAD + f"from workflow import EnsembleNode\nworkflow.add_node(EnsembleNode('Vote', {members}))\n" + RUN
    limits = RolloutConfig(execution_seconds=4.0, retries=1)
    sampler = RoleSampler(Role.EXECUTOR, Actor(RIGHT, hang), 100, attempt_seconds=0.2, retries=1)
    execution = runner.run(run_script(script, TASK, sampler, sandbox, limits, ("t",)))
    assert execution.fault is not None and execution.fault.kind == "infra", execution.fault


@pytest.mark.parametrize(
    "roles", [["assistant"], ["user", "user"], ["user", "system"], ["system"], ["user", "assistant"], ["tool"]]
)
def test_a_conversation_out_of_order_ends_its_script_and_not_the_run(
    roles: list[str], runner: asyncio.Runner, sandbox: Sandbox, graders: Graders
) -> None:
    """Chat templates raise on such an order: that must not reach one."""
    messages = [{"role": role, "content": "x"} for role in roles]
    script = HEAD + (
        "import door\n"
        f"reply = door.ask({{'kind': 'model', 'agent': 'A', 'messages': {messages!r}}})\n"
        "raise SystemExit(reply['error'])\nworkflow.add_node(AgentNode('Solver', 'Solve.'))" + RUN
    )
    execution = runner.run(
        run_script(
            script, TASK, RoleSampler(Role.EXECUTOR, Actor(RIGHT), 100), sandbox, RolloutConfig(retries=0), ("t",)
        )
    )
    assert execution.fault is not None and execution.fault.kind == "script_error"
    assert "user and assistant in turn" in execution.fault.message and execution.calls == []
