"""A tiny Qwen3 with the real chat template and prompts of its own, through the commands: sft, train, eval."""

import json
from pathlib import Path
from typing import Any

import pytest

import metaagentx.backends.local.threads  # noqa: F401  before torch

# isort: split
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer

from metaagentx.backends.chat import ChatTokenizer
from metaagentx.backends.local import new_model
from metaagentx.backends.model_files import model_directory
from metaagentx.config import PromptsConfig, load_config
from metaagentx.rollout.designer import design_messages
from metaagentx.runs import Run
from metaagentx.types import MathGold, Task
from tests.rollout_helpers import COMPUTE, RIGHT, TOOL, WRONG, design
from tests.tiny_model import QUESTIONS, write_recipe
from tests.trainers import Mother

TEMPLATE = (Path(__file__).parents[1] / "data" / "qwen3_chat_template.jinja").read_text()
NO_THOUGHT = {"enable_thinking": False}
PROMPTS = PromptsConfig(
    designer_system="Build a team.",
    designer_request="{question}\nWhich team?",
    agent_instruction=r"Finish with <delivery>\boxed{your result}</delivery>.",
)
TOOLS = """You have tools:
- python(code): Runs Python code and returns what it prints.
To use one, write <tool_call></tool_call> around a JSON object with its "name" and "arguments", then stop and wait for the output.
A fenced python block is run by python in the same way: print what you need."""  # noqa: E501  as the language writes it


Row = dict[str, Any]


def demonstrations() -> list[Row]:
    """Rows of both roles under these prompts; agents compute first, then they are right more often than not."""
    rows: list[Row] = []
    for question in QUESTIONS:
        task = Task(question, "math", question, MathGold(("14",)), "own", "train")
        reply = {"role": "assistant", "content": design(TOOL)}
        rows += [{"role": "designer", "messages": [*design_messages(task, PROMPTS), reply]}]
        system = {"role": "system", "content": f"Compute.\n\n{PROMPTS.agent_instruction}\n\n{TOOLS}"}
        asked = [system, {"role": "user", "content": question}]
        computed = {"role": "assistant", "content": COMPUTE}
        rows += [{"role": "executor", "messages": [*asked, computed]}]
        shown = [*asked, computed, {"role": "user", "content": "Output of python:\n14\n"}]
        for text in (RIGHT, RIGHT, WRONG):
            rows += [{"role": "executor", "messages": [*shown, {"role": "assistant", "content": text}]}]
    return rows


def tiny_qwen3(path: Path, rows: list[Row]) -> Path:
    """Write a new model with Qwen3's architecture, control tokens and chat template."""
    texts = [message["content"] for row in rows for message in row["messages"]]
    new_model(path, "nano", seed=1, texts=texts)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        text = (path / name).read_text().replace("<|end|>", "<|im_end|>").replace("<|system|>", "<|im_start|>")
        (path / name).write_text(text)
    (path / "chat_template.jinja").write_text(TEMPLATE)
    return path


@pytest.mark.slow
def test_qwen3_learns_without_thinking_under_its_own_prompts(tmp_path: Path, mother: Mother) -> None:
    rows = demonstrations()
    model = tiny_qwen3(tmp_path / "base", rows)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    recipe = write_recipe(
        tmp_path, tmp_path / "student", steps=2, stages="{ steps = 1, designer = 1e-3, executor = 1e-3 }"
    )
    text = recipe.read_text().replace("threads = 1 }", "threads = 1, chat_template = { enable_thinking = false } }")
    keys = [f"{key} = {json.dumps(value)}" for key, value in PROMPTS.model_dump().items()]
    recipe.write_text("\n".join([text, "[prompts]", *keys]))

    words = [tmp_path / "rows.jsonl", "--model", model, "--out", tmp_path / "student", "--recipe", recipe]
    words += ["--steps", 80, "--rows-per-step", 20, "--learning-rate", 0.01]
    done = mother.run(*words, command="sft")
    assert done.code == 0, done.err
    assert json.loads((tmp_path / "student.work" / "settings.json").read_text())["chat_template"] == NO_THOUGHT

    sizes = ["--set", "tasks.held_out=2", "--set", "evaluation.tasks=2", "--set", "evaluation.every=2"]
    done = mother.run(recipe, "--run", tmp_path / "run", *sizes, "--set", "evaluation.temperature=0")
    assert done.code == 0, done.err
    run = Run.open(tmp_path / "run")
    config = load_config(run.directory / "config.toml")
    assert config.prompts == PROMPTS and config.model.chat_template == NO_THOUGHT
    metrics = run.metrics()
    assert metrics[0]["designer/ratio"] == pytest.approx(1, abs=1e-3)
    assert metrics[0]["executor/ratio"] == pytest.approx(1, abs=1e-3)

    hf = AutoTokenizer.from_pretrained(tmp_path / "student")
    silent, thinking = ChatTokenizer(hf, template_arguments=NO_THOUGHT), ChatTokenizer(hf)
    executions = [run for tree in run.rollouts(0) for design in tree.designs for run in design.executions]
    first = [call for execution in executions for call in execution.calls if len(call.messages) == 2]
    second = [call for execution in executions for call in execution.calls if len(call.messages) == 4]
    assert first and second, "it was taught to use its tool"
    assert all(PROMPTS.agent_instruction in call.messages[0]["content"] for call in first)
    assert any(execution.reward is not None and execution.reward.solved for execution in executions)
    for call in first:
        assert call.prompt_tokens == len(silent.encode_chat(call.messages)) > len(thinking.encode_chat(call.messages))
    for call in second:  # the empty thought of the first turn is still there, which the template would leave out
        thought = len(silent.encode_chat(call.messages[:2])) - len(thinking.encode_chat(call.messages[:2]))
        assert call.prompt_tokens == len(silent.encode_chat(call.messages)) + thought
    trained = model_directory(run.checkpoint_at(2) / "executor")
    before, after = (load_file(path / "model.safetensors") for path in (tmp_path / "student", trained))
    assert any(not torch.equal(before[name], after[name]) for name in before)
    assert (trained / "chat_template.jinja").read_text() == TEMPLATE

    evaluation = ["--methods", "metaagentx,single-agent", "--checkpoint", "last", "--out", tmp_path / "out"]
    done = mother.run(run.directory, *evaluation, command="eval")
    assert done.code == 0, done.err
    result = json.loads((tmp_path / "out" / "evaluation.json").read_text())
    assert result["overall"]["rows"][0]["average"] == metrics[1]["evaluation/solved"]
    config_file = run.directory / "config.toml"
    config_file.write_text(config_file.read_text().replace("enable_thinking = false", "enable_thinking = true"))
    done = mother.run(run.directory, *evaluation, command="eval")
    assert done.code == 2 and "has results with another designer.chat_template" in done.err, (
        "another template, other replies"
    )
