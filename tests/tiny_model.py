"""A very small model after a cold start: it writes one of two scripts, whose agents are right now and then.

An agent that is told to think is right more often than one that guesses. So there is something to learn for both
roles: the Designer to let agents think, the Executor to be right.
"""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

import metaagentx.backends.local.threads  # noqa: F401  before torch

# isort: split
from metaagentx.backends.local.build import use_threads
from metaagentx.backends.local.model import load_model
from metaagentx.backends.local.policy import LocalPolicy
from metaagentx.backends.local.presets import new_model
from metaagentx.coldstart.demonstrations import Demonstration
from metaagentx.coldstart.sft import row_datum
from metaagentx.rollout.designer import design_messages
from metaagentx.types import MathGold, Role, Task
from metaagentx.workflow.protocol import INSTRUCTION
from tests.rollout_helpers import HEAD, RIGHT, RUN, WRONG, design

QUESTIONS = [
    f"How many squares are there on the {color} board?" for color in ("red", "blue", "green", "black", "white")
]
THINK = HEAD + 'workflow.add_node(AgentNode("Solver", "Think."))' + RUN
GUESS = HEAD + 'workflow.add_node(AgentNode("Solver", "Guess."))' + RUN
VOTE = (
    HEAD
    + 'members = [AgentNode(name, "Think.") for name in ("A", "B", "C")]\n'
    + 'workflow.add_node(EnsembleNode("vote", members))'
    + RUN
)
SCHOOL_QUESTIONS = [*QUESTIONS, *(f"How many squares are there on board {number}?" for number in range(10, 30, 5))]
"""What is taught: with some numbers, because a phrase that is always the same becomes one token."""
LESSONS = 60


def write_tasks(path: Path, count: int = len(QUESTIONS)) -> Path:
    """Tasks of our own in a file; from the sixth on with questions that were not seen at school."""
    more = [f"How many squares are there on board {number}?" for number in range(count - len(QUESTIONS))]
    rows = [{"question": text, "grader": "math", "answer": "14"} for text in (QUESTIONS + more)[:count]]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def school(path: Path, scripts: Sequence[str] = (THINK, GUESS)) -> Path:
    """Write a model that has learnt these scripts, each as likely as the others."""
    rows = _rows(scripts)
    texts = [message["content"] for row in rows for message in row.messages]
    new_model(path.with_name(f"{path.name}-new"), "nano", seed=1, texts=texts)
    policy = LocalPolicy(load_model(path.with_name(f"{path.name}-new"), device="cpu"), "pupil")
    data = [row_datum(policy, row) for row in rows]
    policy.model.submit(lambda: use_threads(1)).result()  # more of them add up in another order: another pupil

    async def learn() -> None:
        for step in range(LESSONS):
            await policy.forward_backward(data, "cross_entropy")
            await policy.optim_step(0.01 * min(1.0, (LESSONS - step) / LESSONS * 2))
        await policy.save(path)

    asyncio.run(learn())
    return path


def _rows(scripts: Sequence[str]) -> list[Demonstration]:
    tasks = [Task(text, "math", text, MathGold(("14",)), "own", "train") for text in SCHOOL_QUESTIONS]
    rows = []
    for task in tasks:
        for script in scripts:
            rows.append(_row(task, Role.DESIGNER, design_messages(task), design(script)))
        for prompt, replies in (("Think.", [RIGHT] * 3 + [WRONG] * 2), ("Guess.", [RIGHT] + [WRONG] * 4)):
            system = {"role": "system", "content": f"{prompt}\n\n{INSTRUCTION}"}
            asked = [system, {"role": "user", "content": task.question}]
            rows += [_row(task, Role.EXECUTOR, asked, reply) for reply in replies]
    return rows


def _row(task: Task, role: Role, asked: list[dict[str, str]], reply: str) -> Demonstration:
    return Demonstration((*asked, {"role": "assistant", "content": reply}), role, task.id, "own", "", "by hand")


RECIPE = """
seed = {seed}
steps = {steps}
stages = [{stages}]
model = {{ path = {model!r}, deterministic = true, threads = 1 }}
tasks = {{ train = "jsonl:{tasks}", per_step = 4, held_out = 0 }}
rollout = {{ designs = 4, executions = 4, designer_tokens = 32, executor_tokens = 32, calls = 8 }}
reward = {{ solution = 0.0, delivery = 0.0 }}
"""


def write_recipe(
    directory: Path, model: Path | str, *, steps: int, stages: str, seed: int = 0, tasks: int = len(QUESTIONS)
) -> Path:
    """A recipe for such a model, with tasks beside it."""
    file = write_tasks(directory / "tasks.jsonl", tasks)
    path = directory / "recipe.toml"
    path.write_text(RECIPE.format(seed=seed, steps=steps, stages=stages, model=str(model), tasks=file))
    return path


def school_once(factory: pytest.TempPathFactory) -> Path:
    """One model for all tests of a session that do not change it."""
    path = factory.getbasetemp() / "tiny_model" / "model"
    if not path.exists():
        path.parent.mkdir()
        school(path)
    return path
