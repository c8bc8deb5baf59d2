"""The teacher of a pretrained model: designs in words of its own, and every kind of reply that they lead to."""

import asyncio
import random
from collections import Counter
from pathlib import Path

import pytest

from metaagentx.coldstart.collect import CollectOptions, collect_demonstrations
from metaagentx.coldstart.teachers import VARIED, Teacher
from metaagentx.coldstart.varied_teacher import VariedTeacher, design
from metaagentx.config import load_config
from metaagentx.config.bundled import bundled_recipe
from metaagentx.errors import MetaAgentXError
from metaagentx.rewards.graders import Graders
from metaagentx.rollout.sampling import RoleSampler
from metaagentx.rollout.tree import Resources, RolloutOptions
from metaagentx.sandbox import Sandbox
from metaagentx.tasks import Mixture
from metaagentx.types import FinalAnswer, Role
from metaagentx.workflow.protocol import pending_tool_uses
from metaagentx.workflow.reply import parse_reply
from metaagentx.workflow.validate import validate
from tests.commands import command

CONFIG = load_config(bundled_recipe("smollm2"))
TASKS = Mixture(CONFIG.tasks.train, seed=0)


def test_hardly_two_scripts_are_equal_and_every_one_can_run() -> None:
    question = TASKS.task(0).question
    replies = [design(question, random.Random(seed)) for seed in range(1000)]
    scripts = [parse_reply(reply).script or "" for reply in replies]
    assert all(validate(script) == [] for script in scripts)
    assert len(set(scripts)) > 990
    with_tool = [reply for reply in replies if "Workflow Pattern: tool" in reply]
    assert 300 < len(with_tool) < 500
    assert all("register_python" in reply for reply in with_tool)
    assert sum("register_python" in reply for reply in replies) == len(with_tool), "the first words name the kind"


def test_it_knows_the_answers_of_the_recipes_families(runner: asyncio.Runner, graders: Graders) -> None:
    from metaagentx.coldstart.families import family_of

    chance, wrong = random.Random(0), 0
    for index in range(100):
        task = TASKS.task(index)
        family, match = family_of(f"Question:\n{task.question}")
        boxed = FinalAnswer.parse(rf"\boxed{{{family.answer(match)}}}")
        assert runner.run(graders.grade(task, boxed)).solved, (task.question, boxed)
        other = FinalAnswer.parse(rf"\boxed{{{family.wrong(match, chance)}}}")
        wrong += not runner.run(graders.grade(task, other)).solved
    assert wrong > 80


def test_its_demonstrations_show_tools_votes_verdicts_and_plans(
    runner: asyncio.Runner, sandbox: Sandbox, graders: Graders, tmp_path: Path
) -> None:
    samplers = {role: RoleSampler(role, VariedTeacher(), 4096) for role in Role}
    resources = Resources(samplers, sandbox, graders, asyncio.Semaphore(16))
    options = CollectOptions(tasks=CONFIG.tasks.train, seed=0, teacher=VARIED, manual=False)
    tasks = [TASKS.task(index) for index in range(120)]
    rollout = RolloutOptions(CONFIG.rollout.model_copy(update={"designs": 2, "executions": 1}), prompts=CONFIG.prompts)
    rows, usage = runner.run(collect_demonstrations(tasks, resources, rollout, options, tmp_path))
    assert 0.5 < usage.solved_share < 0.95, "it is imperfect"
    executor = [row for row in rows if row.role is Role.EXECUTOR]
    replies = [row.messages[-1]["content"] for row in executor]
    patterns = Counter(row.pattern.removesuffix("+tools") for row in executor)
    assert {"single", "ensemble", "reflection"} <= set(patterns)
    for what in ("```python", "CORRECT</delivery>", ", then ", r"\boxed{"):
        assert sum(what in reply for reply in replies) >= 5, what
    offered = [row for row in executor if "You have tools:" in row.messages[0]["content"] and len(row.messages) == 3]
    used = sum(bool(pending_tool_uses(row.messages[-1]["content"])) for row in offered)
    assert 0.2 < used / len(offered) < 0.8, "it forgets its tool at times"
    assert not any("```python" in row.messages[-1]["content"] for row in executor if row not in offered)


def test_it_needs_no_server(runner: asyncio.Runner) -> None:
    async def is_varied() -> bool:
        async with Teacher(VARIED).open() as teacher:
            return isinstance(teacher, VariedTeacher)

    assert runner.run(is_varied()) and Teacher(VARIED).is_programmed
    with pytest.raises(MetaAgentXError, match="--base-url is for a teacher on a server"):
        Teacher(VARIED, base_url="http://localhost:1").open()


def test_a_lora_is_taught_and_becomes_part_of_the_weights(tmp_path: Path) -> None:
    cold = command("coldstart", "--recipe", "smollm2", "--teacher", "varied", "--out", tmp_path / "cold", "--count", 20)
    assert cold.returncode == 0, cold.stderr
    base, rows = tmp_path / "base", tmp_path / "cold" / "coldstart.jsonl"
    assert command("model", "new", base, "--preset", "nano").returncode == 0
    words = ["sft", rows, "--model", base, "--steps", 4, "--rows-per-step", 4, "--learning-rate", 1e-2, "--join-turns"]
    for name, rank in (("one", 4), ("two", 4), ("full", 0)):
        taught = command(*words, "--out", tmp_path / name, "--lora-rank", rank)
        assert taught.returncode == 0, taught.stderr
    from safetensors.numpy import load_file

    weights = {name: load_file(tmp_path / name / "model.safetensors") for name in ("base", "one", "two", "full")}
    assert weights["one"].keys() == weights["base"].keys(), "full weights in Hugging Face format"
    assert not (tmp_path / "one" / "adapter_config.json").exists()
    changed = {name for name, tensor in weights["one"].items() if (tensor != weights["base"][name]).any()}
    assert changed and all("proj" in name for name in changed), "embeddings and norms are frozen"
    assert all((weights["one"][name] == weights["two"][name]).all() for name in changed)
    assert any("embed" in name for name in weights["full"] if (weights["full"][name] != weights["base"][name]).any())
    again = command(*words, "--out", tmp_path / "full", "--lora-rank", 4)
    assert again.returncode == 2 and "exists already" in again.stderr
