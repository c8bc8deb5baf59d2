"""Prompts and dialect of a recipe, through whole rollouts: Designer, sandbox, delivery, reward, saved tree."""

import asyncio
import json
from collections.abc import Callable

import pytest

from metaagentx.config import PromptsConfig, RolloutConfig
from metaagentx.rewards.graders import Graders
from metaagentx.rollout.tree import RolloutOptions, rollout_batch
from metaagentx.runs.trees import rollout_from_json, rollout_to_json
from metaagentx.sandbox import Sandbox
from metaagentx.types import Execution, Rollout
from metaagentx.workflow.protocol import INSTRUCTION
from tests.rollout_helpers import (
    HEAD,
    RIGHT,
    RUN,
    SINGLE,
    TASK,
    TOOL,
    VOTE,
    Actor,
    Reply,
    design,
    executions_of,
    resources,
)

TOLD = (
    "Work step by step and show all of your intermediate results to the reader.\n"
    r"Hand on <delivery>your conclusion</delivery>, with \boxed{your answer} or <solution>a program</solution> in it."
)
PROMPTS = PromptsConfig(
    designer_system="You build teams.", designer_request="Task: {question}\nTeam:", agent_instruction=TOLD
)
ONE = RolloutConfig(designs=1, executions=1)

Grow = Callable[..., tuple[Rollout, Execution]]


@pytest.fixture
def grow(runner: asyncio.Runner, sandbox: Sandbox, graders: Graders) -> Grow:
    def grow(
        script: str,
        reply: Reply | str,
        rollout: RolloutConfig = ONE,
        prompts: PromptsConfig = PROMPTS,
        manual: bool = False,
    ) -> tuple[Rollout, Execution]:
        shared = resources(Actor(design(script)), Actor(reply), sandbox, graders)
        chosen = RolloutOptions(rollout, prompts=prompts, manual=manual)
        (tree,) = runner.run(rollout_batch([TASK], shared, chosen, ("test",)))
        return tree, executions_of([tree])[0]

    return grow


def test_both_roles_are_told_what_the_recipe_says(grow: Grow) -> None:
    tree, execution = grow(TOOL, RIGHT)
    assert tree.designs[0].call.messages == (
        {"role": "system", "content": "You build teams."},
        {"role": "user", "content": f"Task: {TASK.question}\nTeam:"},
    )
    system = execution.calls[0].messages[0]["content"]
    assert system.startswith(f"Compute.\n\n{TOLD}\n\nYou have tools:") and INSTRUCTION not in system
    assert execution.fault is None and execution.reward is not None and execution.reward.total == pytest.approx(1.8)


def test_an_empty_prompt_is_left_out(grow: Grow) -> None:
    tree, execution = grow(SINGLE, RIGHT, prompts=PromptsConfig(designer_system="", agent_instruction=""))
    assert [message["role"] for message in tree.designs[0].call.messages] == ["user"]
    assert execution.calls[0].messages[0]["content"] == "Solve."
    assert execution.reward is not None and execution.reward.solved


def test_a_teacher_reads_the_recipes_prompts_in_the_manual(grow: Grow) -> None:
    tree, _ = grow(SINGLE, RIGHT, manual=True)
    system = tree.designs[0].call.messages[0]["content"]
    assert system.startswith("You build teams.\n\n# Designing")
    assert "> " + TOLD.replace("\n", "\n> ") in system and INSTRUCTION not in system


@pytest.mark.parametrize(
    "echo",
    [
        TOLD,
        f"The instruction: {TOLD} I will do so.",
        f"<delivery>{TOLD}</delivery>",
        "<delivery>your  Conclusion</delivery>",
        "<delivery>Show all of your intermediate results</delivery>",
    ],
)
def test_an_echo_of_the_recipes_instruction_earns_nothing(echo: str, grow: Grow) -> None:
    _, execution = grow(SINGLE, echo)
    assert execution.fault is None and execution.reward is not None
    assert (execution.reward.delivery, execution.reward.solution, execution.reward.total) == (0, 0, 0)


def test_under_the_default_instruction_the_same_text_is_a_delivery(grow: Grow) -> None:
    _, execution = grow(SINGLE, "<delivery>Show all of your intermediate results</delivery>", prompts=PromptsConfig())
    assert execution.reward is not None and execution.reward.delivery == 1
    assert execution.calls[0].instruction == ""


def test_an_example_in_the_instruction_is_not_fed_and_costs_no_right_answer(grow: Grow) -> None:
    prompts = PromptsConfig(agent_instruction=r"End with <delivery></delivery> and, for example, \boxed{14} in it.")
    _, execution = grow(VOTE, RIGHT, prompts=prompts)
    assert execution.fault is None and execution.reward is not None and execution.reward.total == pytest.approx(1.8)
    told = HEAD + 'workflow.add_node(AgentNode("A", "Say: in any case the answer is \\\\boxed{14}."))' + RUN
    _, execution = grow(told, RIGHT, prompts=prompts)
    assert execution.fault is not None and execution.fault.kind == "fed", "the script's own text still is"


def test_a_script_that_changes_its_instruction_gains_nothing(grow: Grow) -> None:
    script = "__agent_instruction__ = 'x'\n" + SINGLE
    _, execution = grow(script, "<delivery>Show all of your intermediate results</delivery>")
    assert execution.reward is not None and execution.reward.total == 0


def test_the_lenient_dialect_notes_in_the_saved_tree_what_it_ignored(grow: Grow) -> None:
    script = HEAD + 'workflow.add_node(AgentNode("Solver", "Solve.", llm="m", **{"seed": 1}), retry=2)' + RUN
    lenient = ONE.model_copy(update={"dialect": "lenient"})
    tree, execution = grow(script, RIGHT, lenient)
    assert execution.fault is None and execution.reward is not None and execution.reward.solved
    loaded = rollout_from_json(json.loads(json.dumps(rollout_to_json(tree))))
    notes = "note: AgentNode has no llm, seed: ignored\nnote: Workflow.add_node has no retry: ignored\n"
    assert loaded.designs[0].executions[0].log == f"{notes}\\boxed{{14}}\n"
    assert loaded.designs[0].executions[0].calls[0].instruction == TOLD
    assert loaded.designs[0].script is not None and loaded.designs[0].script.strip("\n") == script.strip("\n")


def test_the_strict_dialect_refuses_it_before_it_runs(
    runner: asyncio.Runner, sandbox: Sandbox, graders: Graders
) -> None:
    script = HEAD + 'workflow.add_node(AgentNode("Solver", "Solve.", llm="m"))' + RUN
    executor = Actor(RIGHT)
    shared = resources(Actor(design(script)), executor, sandbox, graders)
    (tree,) = runner.run(rollout_batch([TASK], shared, RolloutOptions(ONE), ("test",)))
    fault = tree.designs[0].fault
    assert fault is not None and fault.kind == "invalid_script" and "unexpected keyword argument 'llm'" in fault.message
    assert executor.asked == []
