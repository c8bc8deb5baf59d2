"""Whole trees with a scripted policy, the real sandbox and the real graders."""

import asyncio
import random
from dataclasses import dataclass, replace

import pytest

from metaagentx.backends.scripted import ScriptedPolicy
from metaagentx.config import CreditConfig, RewardConfig, RolloutConfig
from metaagentx.rewards.graders import Graders
from metaagentx.rollout.tree import RolloutOptions, rollout_batch
from metaagentx.sandbox import Sandbox
from metaagentx.training.batching import data_for
from metaagentx.training.credit import assign_credit
from metaagentx.types import Execution, Role, Rollout, Task
from metaagentx.workflow.manual import language_manual
from metaagentx.workflow.structure import MAX_CALLS
from metaagentx.workflow.validate import ScriptProblem, validate
from tests.rollout_helpers import (
    COMPUTE,
    HEAD,
    REFLECTION,
    RIGHT,
    RUN,
    SINGLE,
    TASK,
    TOOL,
    TOOL_VOTE,
    VOTE,
    WRONG,
    Actor,
    by_agent,
    design,
    executions_of,
    in_words,
    resources,
    timeless,
)

ORACLE = """
class Oracle(WorkflowNode):
    def process(self, context):
        {before}
        return Message({message})

workflow.add_node(AgentNode("Solver", "Solve."))
workflow.add_node(Oracle("oracle"))
"""
LIMITS = RolloutConfig(designs=1, executions=2, calls=6, tokens=2000, cpu_seconds=1.0)
DELIVERED = {WRONG: r"\boxed{9}", RIGHT: r"\boxed{14}"}


@dataclass
class Case:
    script: str
    replies: dict[str, str | list[str]]
    agents: str
    answer: str | None
    answer_call: int | None
    fault: str | None
    reward: float


SOLVES: dict[str, str | list[str]] = {"Solve.": RIGHT}
CASES = {
    "single, right": Case(SINGLE, SOLVES, "Solver", r"\boxed{14}", 0, None, 1.8),
    "single, wrong": Case(SINGLE, {"Solve.": WRONG}, "Solver", r"\boxed{9}", 0, None, 0.8),
    "single, no delivery": Case(SINGLE, {"Solve.": r"\boxed{14}"}, "Solver", r"\boxed{14}", 0, None, 1.4),
    "single, nothing to read": Case(SINGLE, {"Solve.": "Fourteen."}, "Solver", "Fourteen.", 0, None, 0.0),
    "vote": Case(VOTE, {"A": WRONG, "B": RIGHT, "C": RIGHT}, "A B C", r"\boxed{14}", 1, None, 1.8),
    "tool": Case(TOOL, {"Compute.": [COMPUTE, RIGHT]}, "Coder Coder", r"\boxed{14}", 1, None, 1.8),
    "reflection": Case(
        REFLECTION, {"Solve.": RIGHT, "Criticise.": "Larger ones count too. INCORRECT"},
        "Solver Critic Solver", r"\boxed{14}", 2, None, 1.4 + 0.8 / 3,
    ),
    "crash": Case(
        HEAD + 'workflow.add_node(AgentNode("Solver", "Solve."))' + RUN + "1 / 0", SOLVES,
        "Solver", None, None, "script_error", 0.0,
    ),
    "endless loop": Case(
        HEAD + 'workflow.add_node(AgentNode("Solver", "Solve."))' + RUN + "while True: pass", SOLVES,
        "Solver", None, None, "cpu", 0.0,
    ),
    "too many calls": Case(
        HEAD + 'workflow.add_node(AgentNode("Solver", "Solve."))\nwhile True:\n    workflow.run(question)', SOLVES,
        "Solver " * 6, None, None, "budget", 0.0,
    ),
    "too many tokens": Case(
        VOTE, {"A": "a" * 900, "B": "b" * 900, "C": "c" * 900}, "A B C", None, None, "budget", 0.0,
    ),
    "hard-coded": Case(
        HEAD + ORACLE.format(before="", message='r"\\boxed{14}"') + RUN, {"Solve.": WRONG},
        "Solver", r"\boxed{14}", None, "hard_coded", 0.0,
    ),
    "forged as a call that said something else": Case(
        HEAD + ORACLE.format(before="", message='r"\\boxed{14}", "Solver", call=0') + RUN, {"Solve.": WRONG},
        "Solver", r"\boxed{14}", None, "hard_coded", 0.0,
    ),
    "forged as a call that never was": Case(
        HEAD + ORACLE.format(before="", message='r"\\boxed{14}", "Solver", call=5') + RUN, SOLVES,
        "Solver", r"\boxed{14}", None, "hard_coded", 0.0,
    ),
    "a box on stdout": Case(
        SINGLE + r'print("\\boxed{14} <delivery>\\boxed{14}</delivery> reward: 1.8")', {"Solve.": WRONG},
        "Solver", r"\boxed{9}", 0, None, 0.8,
    ),
    "nothing but stdout": Case(
        HEAD + "if False:\n    workflow.run(question)\n" + r'print("\\boxed{14}")', SOLVES,
        "", None, None, "no_answer", 0.0,
    ),
}  # fmt: skip


def grow_one(
    runner: asyncio.Runner, sandbox: Sandbox, graders: Graders, script: str, executor: Actor, options: RolloutOptions
) -> Rollout:
    shared = resources(Actor(design(script)), executor, sandbox, graders)
    (tree,) = runner.run(rollout_batch([TASK], shared, options, ("test",)))
    return tree


@pytest.mark.parametrize("name", CASES)
def test_an_execution_is_what_the_script_says(
    name: str, runner: asyncio.Runner, sandbox: Sandbox, graders: Graders
) -> None:
    case = CASES[name]
    options = RolloutOptions(LIMITS)
    tree = grow_one(runner, sandbox, graders, case.script, Actor(by_agent(case.replies)), options)
    expected = (case.agents.split(), case.answer, case.answer_call, case.fault, round(case.reward, 9))
    assert [in_words(execution) for execution in tree.designs[0].executions] == [expected] * 2
    assert tree.designs[0].script == case.script.strip("\n")


REFUSED = {
    "a syntax error": (design(HEAD + "workflow.add_node(("), "invalid_script", "this is not Python"),
    "an import that is not there": (design("import socket\n" + SINGLE), "invalid_script", "there is no network"),
    "no script": ("I would ask three experts.", "no_script", "between <code> and </code>"),
    "cut off": (f"<code>\n{SINGLE}", "no_script", "not closed"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_design_that_cannot_run_costs_nothing_and_is_worth_0(
    name: str, runner: asyncio.Runner, sandbox: Sandbox, graders: Graders
) -> None:
    reply, kind, message = REFUSED[name]
    executor = Actor(RIGHT)
    shared = resources(ScriptedPolicy([reply, design(SINGLE)]), executor, sandbox, graders)
    (tree,) = runner.run(
        rollout_batch([TASK], shared, RolloutOptions(RolloutConfig(designs=2, executions=2)), ("test",))
    )
    assign_credit(tree, CreditConfig())
    bad, good = tree.designs
    assert bad.fault and bad.fault.kind == kind and message in bad.fault.message
    assert (bad.executions, bad.reward, bad.call.text) == ([], 0.0, reply)
    assert good.reward == pytest.approx(1.8)
    assert bad.call.advantage == pytest.approx(-1.0, abs=1e-5) and good.call.advantage == pytest.approx(1.0, abs=1e-5)
    assert len(executor.asked) == 2


def test_a_tree_holds_every_design_in_its_place(runner: asyncio.Runner, sandbox: Sandbox, graders: Graders) -> None:
    scripts = [SINGLE, VOTE, TOOL, REFLECTION]
    replies: dict[str, str | list[str]] = {"Solve.": WRONG, "A": RIGHT, "B": WRONG, "C": RIGHT}
    replies |= {"Compute.": [COMPUTE, RIGHT], "Criticise.": "CORRECT"}
    shared = resources(ScriptedPolicy(map(design, scripts)), Actor(by_agent(replies)), sandbox, graders)
    (tree,) = runner.run(
        rollout_batch([TASK], shared, RolloutOptions(RolloutConfig(designs=4, executions=3)), ("test",))
    )
    assign_credit(tree, CreditConfig())
    assert [design.pattern for design in tree.designs] == ["single", "ensemble", "single+tools", "reflection"]
    assert [len(design.executions) for design in tree.designs] == [3] * 4
    assert [design.reward for design in tree.designs] == pytest.approx([0.8, 1.8, 1.8, 0.6])
    assert [len(design.executions[0].calls) for design in tree.designs] == [1, 3, 2, 2]


def test_a_conversation_goes_on_from_the_very_tokens_that_were_sampled(
    runner: asyncio.Runner, sandbox: Sandbox, graders: Graders
) -> None:
    def reply(conversation: list[dict[str, str]], seed: int) -> str:
        if conversation[-1]["role"] == "user" and "Output of python" in conversation[-1]["content"]:
            assert "14" in conversation[-1]["content"]
            return RIGHT
        return COMPUTE

    executor = Actor(reply)
    tree = grow_one(runner, sandbox, graders, TOOL, executor, RolloutOptions(RolloutConfig(designs=1, executions=1)))
    first, second = tree.designs[0].executions[0].calls
    assert second.prompt[: len(first.prompt) + len(first.completion)] == first.prompt + first.completion
    assert [message["role"] for message in second.messages] == ["system", "user", "assistant", "user"]
    assert executor.tokenizer.read_chat(second.prompt) == list(second.messages)


def test_members_that_say_the_same_go_on_from_tokens_of_their_own_conversation(
    runner: asyncio.Runner, sandbox: Sandbox, graders: Graders
) -> None:
    script = TOOL_VOTE.replace("AgentNode(name, name,", 'AgentNode(name, "Same.",')
    executor = Actor(by_agent({"Same.": [COMPUTE, RIGHT], "Judge.": RIGHT}))
    tree = grow_one(runner, sandbox, graders, script, executor, RolloutOptions(RolloutConfig(designs=1, executions=1)))
    calls = tree.designs[0].executions[0].calls
    assert [call.agent for call in calls] == list("ABCDABCD")
    for before, after in zip(calls[:4], calls[4:], strict=True):
        assert after.prompt[: len(before.prompt) + len(before.completion)] == before.prompt + before.completion


def test_a_recipe_may_pay_for_answers_that_no_agent_wrote(
    runner: asyncio.Runner, sandbox: Sandbox, graders: Graders
) -> None:
    options = RolloutOptions(RolloutConfig(designs=1, executions=1), RewardConfig(allow_hard_coded=True))
    tree = grow_one(runner, sandbox, graders, CASES["hard-coded"].script, Actor(WRONG), options)
    (execution,) = tree.designs[0].executions
    assert in_words(execution) == (["Solver"], r"\boxed{14}", None, None, 1.8)


def test_an_answer_that_is_not_even_ours_is_the_scripts_own(
    runner: asyncio.Runner, sandbox: Sandbox, graders: Graders
) -> None:
    script = SINGLE + "import sys\nsys.modules['door'].answer('14')"
    tree = grow_one(
        runner, sandbox, graders, script, Actor(RIGHT), RolloutOptions(RolloutConfig(designs=1, executions=1))
    )
    assert in_words(tree.designs[0].executions[0]) == (["Solver"], "14", None, "hard_coded", 0.0)


def test_what_a_script_prints_is_kept_up_to_a_length(
    runner: asyncio.Runner, sandbox: Sandbox, graders: Graders
) -> None:
    options = RolloutOptions(RolloutConfig(designs=1, executions=1))
    tree = grow_one(runner, sandbox, graders, SINGLE + "print('x' * 100_000)", Actor(RIGHT), options)
    (execution,) = tree.designs[0].executions
    assert execution.log.startswith(r"\boxed{14}") and len(execution.log) == 10_000


# --- nothing waits for what it does not need


def test_a_design_runs_while_another_is_still_being_written(
    runner: asyncio.Runner, sandbox: Sandbox, graders: Graders
) -> None:
    executed = asyncio.Event()

    async def second_waits(count: int) -> None:
        if count == 2:
            await asyncio.wait_for(executed.wait(), 20)

    async def tell(count: int) -> None:
        executed.set()

    shared = resources(Actor(design(SINGLE), second_waits), Actor(RIGHT, tell), sandbox, graders)
    (tree,) = runner.run(
        rollout_batch([TASK], shared, RolloutOptions(RolloutConfig(designs=2, executions=1)), ("test",))
    )
    assert [in_words(execution)[-1] for execution in executions_of([tree])] == [1.8, 1.8]


def test_all_calls_of_all_executions_reach_the_policy_at_once(
    runner: asyncio.Runner, sandbox: Sandbox, graders: Graders
) -> None:
    everybody = asyncio.Event()

    async def wait_for_all(count: int) -> None:
        if count == 2 * 2 * 2 * 3:
            everybody.set()
        await asyncio.wait_for(everybody.wait(), 30)

    shared = resources(Actor(design(VOTE)), Actor(RIGHT, wait_for_all), sandbox, graders)
    trees = runner.run(
        rollout_batch([TASK, TASK], shared, RolloutOptions(RolloutConfig(designs=2, executions=2)), ("test",))
    )
    assert all(execution.fault is None for execution in executions_of(trees))


def test_no_more_executions_are_under_way_than_allowed(
    runner: asyncio.Runner, sandbox: Sandbox, graders: Graders
) -> None:
    under_way, most = 0, 0

    async def count_them(count: int) -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0.02)
        under_way -= 1

    shared = resources(Actor(design(SINGLE)), Actor(RIGHT, count_them), sandbox, graders, in_flight=3)
    runner.run(rollout_batch([TASK], shared, RolloutOptions(RolloutConfig(designs=4, executions=4)), ("test",)))
    assert most == 3


def test_identical_designs_are_validated_once(
    runner: asyncio.Runner, sandbox: Sandbox, graders: Graders, monkeypatch: pytest.MonkeyPatch
) -> None:
    validated: list[str] = []

    def counting(script: str, lenient: bool, tools: bool) -> list[ScriptProblem]:
        validated.append(script)
        return validate(script, lenient, tools)

    monkeypatch.setattr("metaagentx.rollout.designer.validate", counting)
    scripts = [f"# No other test has written this.\n{script}" for script in (SINGLE, VOTE)]
    shared = resources(ScriptedPolicy(map(design, scripts * 4)), Actor(RIGHT), sandbox, graders)
    runner.run(rollout_batch([TASK, TASK], shared, RolloutOptions(RolloutConfig(designs=4, executions=1)), ("test",)))
    assert sorted(validated) == sorted(script.strip("\n") for script in scripts)


def test_progress_hears_of_every_execution(runner: asyncio.Runner, sandbox: Sandbox, graders: Graders) -> None:
    heard: list[Execution] = []
    shared = replace(resources(Actor(design(SINGLE)), Actor(RIGHT), sandbox, graders), on_execution=heard.append)
    trees = runner.run(rollout_batch([TASK], shared, RolloutOptions(RolloutConfig(designs=2, executions=3)), ("test",)))
    assert sorted(map(id, heard)) == sorted(map(id, executions_of(trees)))


# --- limits


def test_a_conversation_that_fills_the_context_ends_the_execution(
    runner: asyncio.Runner, sandbox: Sandbox, graders: Graders
) -> None:
    executor = Actor(by_agent({"Compute.": COMPUTE}))
    options = RolloutOptions(RolloutConfig(designs=1, executions=1))
    free = grow_one(runner, sandbox, graders, TOOL, executor, options)
    executor.context_length = length = len(free.designs[0].executions[0].calls[1].prompt)
    (execution,) = grow_one(runner, sandbox, graders, TOOL, executor, options).designs[0].executions
    assert in_words(execution) == (["Coder"], None, None, "budget", 0.0)
    assert execution.fault and execution.fault.message == f"the conversation has {length} tokens of {length}"


def test_a_question_longer_than_the_context_is_no_infra_fault(
    runner: asyncio.Runner, sandbox: Sandbox, graders: Graders
) -> None:
    designer = Actor(design(SINGLE))
    designer.context_length = 20
    shared = resources(designer, Actor(RIGHT), sandbox, graders)
    (tree,) = runner.run(rollout_batch([TASK], shared, RolloutOptions(RolloutConfig(designs=1)), ("test",)))
    assert tree.designs[0].fault and tree.designs[0].fault.kind == "context"
    assert data_for(Role.DESIGNER, [tree]) == []


def test_a_reply_is_cut_at_its_longest(runner: asyncio.Runner, sandbox: Sandbox, graders: Graders) -> None:
    shared = resources(Actor(design(SINGLE)), Actor("x" * 100), sandbox, graders)
    samplers = {
        role: replace(one, max_tokens=50 if role is Role.EXECUTOR else 4096) for role, one in shared.samplers.items()
    }
    (tree,) = runner.run(
        rollout_batch(
            [TASK],
            replace(shared, samplers=samplers),
            RolloutOptions(RolloutConfig(designs=1, executions=1)),
            ("test",),
        )
    )
    (call,) = tree.designs[0].executions[0].calls
    assert (call.text, call.tokens, call.finish) == ("x" * 50, 50, "length")


# --- the same path, the same tree


# How many calls a node of the script's own makes is unknown, so only the execution finds that they are too many.
AROUND = """
class Around(WorkflowNode):
    def process(self, context):
        return workflow_ask(vote, context)

workflow.add_node(Around("around"))
"""
UNKNOWN_VOTE = "from workflow import ask as workflow_ask\n" + TOOL_VOTE.replace(RUN, AROUND + RUN).replace(
    "workflow.add_node(EnsembleNode", "vote = (EnsembleNode"
)


def told_by_seed(conversation: list[dict[str, str]], seed: int) -> str:
    turn = sum(message["role"] == "assistant" for message in conversation)
    if "You design" in conversation[0]["content"]:
        return design([UNKNOWN_VOTE, VOTE, TOOL, REFLECTION][seed % 4])
    if turn < seed % 3:
        return f"```python\nprint({seed % 5})\n```"
    return [RIGHT, WRONG, r"<delivery>\boxed{13}</delivery> INCORRECT", "I do not know. " * (seed % 40)][seed % 4]


class Hurried:
    """Waits of a few milliseconds, different ones in each run."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    async def __call__(self, count: int) -> None:
        await asyncio.sleep(self._random.choice([0, 0, 0.002, 0.01, 0.03]))


@pytest.mark.parametrize("limits", [{}, {"tokens": 300}, {"calls": 5}], ids=["all", "tokens", "calls"])
def test_the_same_path_gives_the_same_trees_whoever_is_faster(
    limits: dict[str, int], runner: asyncio.Runner, sandbox: Sandbox, graders: Graders
) -> None:
    def trees(delays: int, path: str) -> list[Rollout]:
        designer, executor = (Actor(told_by_seed, Hurried(delays + role)) for role in range(2))
        shared = resources(designer, executor, sandbox, graders, in_flight=7)
        tasks = [TASK, replace(TASK, question="How many squares are there on a 2 by 2 board?")]
        return runner.run(
            rollout_batch(
                tasks,
                shared,
                RolloutOptions(RolloutConfig.model_validate({"designs": 4, "executions": 3} | limits)),
                ("run", path),
            )
        )

    first = trees(1, "a")
    assert timeless(first) == timeless(trees(100, "a")) == timeless(trees(200, "a"))
    assert timeless(first) != timeless(trees(1, "b"))
    if limits:
        assert any(execution.fault and execution.fault.kind == "budget" for execution in executions_of(first))


def test_everything_drawn_has_a_seed_of_its_own(runner: asyncio.Runner, sandbox: Sandbox, graders: Graders) -> None:
    designer, executor = Actor(design(VOTE)), Actor(RIGHT)
    shared = resources(designer, executor, sandbox, graders)
    runner.run(rollout_batch([TASK, TASK], shared, RolloutOptions(RolloutConfig(designs=2, executions=2)), ("test",)))
    seeds = [params.seed for params in (*designer.asked, *executor.asked)]
    assert len(set(seeds)) == len(seeds) == 4 + 2 * 2 * 2 * 3


# --- what goes wrong on our side is raised


def test_a_bug_of_ours_is_raised_and_leaves_nothing_running(
    runner: asyncio.Runner, sandbox: Sandbox, graders: Graders
) -> None:
    async def fail(count: int) -> None:
        if count == 3:
            raise RuntimeError("a bug")
        await asyncio.sleep(60)

    async def attempt() -> int:
        before = asyncio.all_tasks()
        shared = resources(Actor(design(SINGLE)), Actor(RIGHT, fail), sandbox, graders)
        with pytest.raises(RuntimeError, match="a bug"):
            await rollout_batch([TASK, TASK], shared, RolloutOptions(RolloutConfig(designs=2, executions=2)), ("test",))
        await asyncio.sleep(0.2)
        return len(asyncio.all_tasks() - before)

    assert runner.run(attempt()) == 0


def test_a_rollout_that_is_cancelled_leaves_nothing_running(
    runner: asyncio.Runner, sandbox: Sandbox, graders: Graders
) -> None:
    async def attempt() -> int:
        started = asyncio.Event()

        async def hang(count: int) -> None:
            if count == 4:
                started.set()
            await asyncio.sleep(60)

        before = asyncio.all_tasks()
        shared = resources(Actor(design(SINGLE)), Actor(RIGHT, hang), sandbox, graders)
        growing = asyncio.create_task(
            rollout_batch([TASK], shared, RolloutOptions(RolloutConfig(designs=2, executions=2)), ("test",))
        )
        await asyncio.wait_for(started.wait(), 20)
        growing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await growing
        await asyncio.sleep(0.2)
        return len(asyncio.all_tasks() - before)

    assert runner.run(attempt()) == 0


def test_tasks_of_every_kind_are_graded_by_their_own_grader(
    runner: asyncio.Runner, sandbox: Sandbox, graders: Graders
) -> None:
    from metaagentx.types import CodeTests, StdinTest

    code = Task("sum", "code", "Add.", CodeTests((StdinTest("1 2", "3"), StdinTest("2 2", "4"))), "test", "train")
    half = "<delivery><solution>print(3)</solution></delivery>"
    shared = resources(Actor(design(SINGLE)), Actor(half), sandbox, graders)
    (training,) = runner.run(
        rollout_batch([code], shared, RolloutOptions(RolloutConfig(designs=1, executions=1)), ("test",))
    )
    (evaluation,) = runner.run(
        rollout_batch([code], shared, RolloutOptions(RolloutConfig(designs=1, executions=1), strict=True), ("test",))
    )
    rewards = [tree.designs[0].executions[0].reward for tree in (training, evaluation)]
    assert [reward and reward.outcome for reward in rewards] == [0.5, 0.0]


def test_a_design_that_is_too_large_is_no_peer_of_those_that_ran(
    runner: asyncio.Runner, sandbox: Sandbox, graders: Graders
) -> None:
    agents = ", ".join(f'"A{n}"' for n in range(17))
    large = VOTE.replace('"A", "B", "C"', agents)
    caught = large.replace(RUN, "try:\n    workflow.run(question)\nexcept Exception:\n    pass\n")
    written = [design(SINGLE), design(large), design(caught), design(SINGLE)]
    designer = Actor(lambda conversation, seed: written.pop(0))
    options = RolloutOptions(RolloutConfig(designs=4, executions=2))
    (tree,) = runner.run(rollout_batch([TASK], resources(designer, Actor(RIGHT), sandbox, graders), options, ("test",)))
    assign_credit(tree, CreditConfig())
    kinds = [made.fault and made.fault.kind for made in tree.designs]
    assert kinds == [None, "invalid_script", "invalid_script", None]
    assert [made.reward for made in tree.designs] == [pytest.approx(1.8), 0, 0, pytest.approx(1.8)]
    advantages = [call.advantage for execution in executions_of([tree]) for call in execution.calls]
    assert len(advantages) == 4 and not any(advantages), "all that ran are alike: nothing to learn"


def test_an_answer_that_a_script_made_up_is_cut_before_it_is_parsed(
    runner: asyncio.Runner, sandbox: Sandbox, graders: Graders
) -> None:
    script = SINGLE + "\nimport sys\nsys.modules['door'].answer('{' * 1_040_000)\n"
    options = RolloutOptions(RolloutConfig(designs=1, executions=1))
    shared = resources(Actor(design(script)), Actor(RIGHT), sandbox, graders)
    (tree,) = runner.run(rollout_batch([TASK], shared, options, ("test",)))
    (execution,) = executions_of([tree])
    assert execution.fault is not None and execution.fault.kind == "hard_coded"
    assert execution.answer is not None and len(execution.answer.text) < 30_000


def test_the_runtime_the_manual_and_the_execution_allow_the_same_number_of_calls(
    runner: asyncio.Runner, sandbox: Sandbox, graders: Graders
) -> None:
    assert RolloutConfig().calls == MAX_CALLS
    assert f"{MAX_CALLS} model calls in the worst case" in language_manual()
    # A recipe that allows 2 calls: the vote of three is refused before its first call.
    designer, executor = Actor(design(VOTE)), Actor(RIGHT)
    options = RolloutOptions(RolloutConfig(designs=1, executions=1, calls=2), manual=True)
    shared = resources(designer, executor, sandbox, graders)
    (tree,) = runner.run(rollout_batch([TASK], shared, options, ("test",)))
    fault = tree.designs[0].fault
    assert fault is not None and fault.kind == "invalid_script" and executor.asked == []
    assert "up to 3 model calls are too many; at most 2 are allowed" in fault.message
    assert (tree.designs[0].executions, tree.designs[0].pattern) == ([], "")
    assert "2 model calls in the worst case" in tree.designs[0].call.messages[0]["content"]
    (tree,) = runner.run(
        rollout_batch(
            [TASK], shared, replace(options, rollout=RolloutConfig(designs=1, executions=1, calls=3)), ("test",)
        )
    )
    assert tree.designs[0].fault is None and len(executions_of([tree])[0].calls) == 3
