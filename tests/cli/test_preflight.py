"""What is cheap to check is found before torch is imported and before anything is written, by every command."""

import json
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from metaagentx.backends.model_files import check_model
from metaagentx.cli.preflight import check_new, check_output_directory
from metaagentx.errors import MetaAgentXError
from metaagentx.runs import Run
from tests.rollout_helpers import SINGLE
from tests.unprivileged import as_nobody, public_directory

RECIPE = """
steps = 1
stages = [{ steps = 1, executor = 1e-4 }]
model.path = "model"
tasks = { train = "jsonl:own.jsonl", held_out = 1 }
"""

# Runs each command in a fork that has imported what commands import before they load a model, and tells how it ended.
PROGRAM = """
import json, os, sys
import metaagentx.cli.evaluation_request, metaagentx.cli.quickstart_parts, metaagentx.cli.assembly
from metaagentx.cli import main as cli
for words in json.loads(sys.argv[1]):
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.dup2(writing, 2)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.argv = ["metaagentx", *words]
        code = 0
        try:
            cli.main()
        except SystemExit as ended:
            code = ended.code
        print(code, sorted({"torch", "transformers"} & set(sys.modules)), file=sys.stderr, flush=True)
        os._exit(0)
    os.close(writing)
    print(json.dumps(os.fdopen(reading).read()), flush=True)
    os.wait()
"""


def fake_model(path: Path) -> Path:
    """All that can be seen of a model without loading it."""
    path.mkdir(parents=True)
    header = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    (path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))
    (path / "config.json").write_text("{}")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (path / name).write_text("{}")
    return path


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe that could be trained, a run that could be evaluated, and much that is broken."""
    home = tmp_path_factory.mktemp("project")
    (home / "sub").mkdir()
    for name in ("recipe.toml", "sub/recipe.toml"):
        (home / name).write_text(RECIPE)
    fake_model(home / "model")
    model = fake_model(home / "cut") / "model.safetensors"
    model.write_bytes(model.read_bytes()[:-1])
    (fake_model(home / "mute") / "tokenizer.json").unlink()
    rows = [{"question": f"What is {n}?", "grader": "math", "answer": str(n)} for n in range(4)]
    (home / "own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (home / "lost.jsonl").write_text(json.dumps({"question": "Rain?", "grader": "lost:f"}) + "\n")
    (home / "bad.jsonl").write_text(json.dumps({"question": "Rain?", "grader": "bad:f", "data": 1}) + "\n")
    (home / "bad.py").write_text("def f(answer, data):\n    return data[answer]\n")
    (home / "good.py").write_text(SINGLE)
    (home / "own.gguf").write_text("")
    (home / "broken.py").write_text("import os\n")
    (home / "nowhere").symlink_to("gone")
    for name in ("run", "cut_run"):
        run = Run.create(home / name, RECIPE.replace('"model"', '"../model"').replace(":own", ":../own"))
        checkpoint = run.directory / "checkpoints" / "000001"
        fake_model(checkpoint / "executor")
        (checkpoint / "state.json").write_text('{"format": 1, "step": 1, "best": null, "extra": null}')
    (checkpoint / "executor" / "model.safetensors").write_text("")
    return home


GRADER = "the grader lost:f of {home}/lost.jsonl cannot be used: no module lost, neither in {home} nor .*"
REFUSED = {
    "train recipe.toml --set model.path=missing": "no model at {home}/missing "
    r'\(model\.path = "missing" in --set, from the working directory\): create .* `metaagentx model new .*',
    "train tiny --run new": r"no model at {home}/runs/quickstart/student "
    r'\(model\.path = "runs/quickstart/student" in .*/tiny\.toml\): run `metaagentx quickstart` first, .*',
    "train sub/recipe.toml": "no model at {home}/sub/model "
    r'\(model\.path = "model" in sub/recipe\.toml; paths in '
    r"a recipe are relative to its directory: if {home}/model is meant, write --set model\.path=model\): .*",
    "train recipe.toml --set model.path=preset:giant": "unknown preset giant: choose one of nano, .*",
    "train recipe.toml --set model.path=cut": r"{home}/cut/model\.safetensors is truncated .*has \d+ bytes of \d+.*",
    "train recipe.toml --set model.path=mute": r"the model directory {home}/mute has no tokenizer\.json: copy .*",
    "train recipe.toml --set model.path=own.jsonl": r"{home}/own\.jsonl is a file, and a model is a directory: .*",
    "train recipe.toml --set model.path=own.gguf": r"{home}/own\.gguf is a file, .* or convert it: metaagentx model .*",
    "train recipe.toml --set model.path=acme/none --set tasks.train=gsm9k": "no source 'gsm9k': did you mean gsm8k.",
    "train recipe.toml --set model.path=preset:10m --set optimizer.token_budget=1000000000": (
        r"the recipe needs [\d.]+ GiB on cpu \(update: activations [\d.]+ GiB, .*\), and [\d.]+ GiB are free: "
        r"this fits: --set optimizer\.token_budget=\d+ \([\d.]+ GiB\), or .*"
    ),
    "train recipe.toml --set tasks.train=gsm9k": "no source 'gsm9k': did you mean gsm8k.",
    "train recipe.toml --set tasks.train=jsonl:mine.jsonl": r"jsonl: no file {home}/mine\.jsonl",
    "train recipe.toml --set tasks.train=gym:gcd?terms=2": "gym:gcd has no setting 'terms': .*",
    "train recipe.toml --set tasks.train=jsonl:lost.jsonl --set tasks.held_out=0": GRADER,
    "train recipe.toml --set tasks.train=jsonl:bad.jsonl --set tasks.held_out=0": (
        r"the grader bad:f of {home}/bad\.jsonl cannot be used: bad:f raised TypeError: .*, when it was tried with .*"
    ),
    "train recipe.toml --run nowhere": r"nowhere is a symbolic link that leads nowhere \(to gone\): .*",
    "train recipe.toml --run own.jsonl/run": "own.jsonl/run cannot be a directory: {home}/own.jsonl is a file: .*",
    "train --resume nowhere": r"nowhere is a symbolic link that leads nowhere \(to gone\): .*",
    "train --fork run@1 --run new --set model.path=missing": "no model at {home}/missing .*",
    "train --fork run@2 --run new": "run has no checkpoint of step 2; steps with one: 1",
    "eval run --script broken.py": "the script broken.py cannot run: .*",
    "eval run --script good.py --methods votes": "unknown method 'votes'; .*",
    "eval run --methods self-consistency": "self-consistency has the budget of metaagentx: measure that as well",
    "eval run --tasks jsonl:lost.jsonl --split train": GRADER,
    "eval run --out own.jsonl/out": "own.jsonl/out cannot be a directory: .*: choose another directory with --out",
    "eval run --initial-model cut": r"cut/model\.safetensors is truncated .*",
    "eval run --against cut": r"cut/model\.safetensors is truncated .*",
    "eval cut_run": r"cut_run/checkpoints/000001/executor/model\.safetensors is truncated .*",
    "eval --model cut --tasks jsonl:own.jsonl --split train": r"cut/model\.safetensors is truncated .*",
    "eval --model missing --tasks jsonl:own.jsonl --split train": "no model at missing: .*",
    "eval --model model --tasks jsonl:lost.jsonl --split train": GRADER,
    "eval --model model": "a model without a run has no tasks of its own: .*",
    "eval --model m --base-url http://127.0.0.1:1/v1 --tasks jsonl:own.jsonl --split train": (
        r"http://127\.0\.0\.1:1/v1 cannot be reached: .*"
    ),
    "coldstart jsonl:lost.jsonl --out taught --set tasks.held_out=0": GRADER,
    "coldstart gsm9k --out taught": "no source 'gsm9k': .*",
    "coldstart jsonl:own.jsonl --out own.jsonl/taught": "own.jsonl/taught cannot be a directory: .*",
    "sft chats.jsonl --model missing --out taught": "no model at missing: .*",
    "sft chats.jsonl --model preset:giant --out taught": "unknown preset giant: .*",
    "sft chats.jsonl --model model --out taught": r"chats\.jsonl does not exist: .*",
    "sft chats.jsonl --model model --out nowhere": r"nowhere is a symbolic link that leads nowhere .*",
    "sft chats.jsonl --model model --out taught --set optimizer.weight_decay=1": (
        "--set optimizer.weight_decay=1: sft takes model.chat_template and model.dtype only: .*"
    ),
    "train recipe.toml --set model.chat_template.conversations=1": (
        r".*model\.chat_template\.conversations: the backend sets this argument: remove it"
    ),
    "train recipe.toml --set model.chat_template.enable_thinking=False": (
        r'.*model\.chat_template\.enable_thinking: "False" is a text: write false'
    ),
    "train recipe.toml --set model.chat_template={enable_thinking='false'}": (
        r'.*model\.chat_template\.enable_thinking: "false" is a text: write false'
    ),
    "quickstart --recipe lost.toml --dir quick": "lost.toml cannot be read .*",
    "quickstart --recipe odd.toml --dir quick": "no source 'gsm9k': .*",
    "quickstart --recipe recipe.toml --dir own.jsonl/quick": "own.jsonl/quick cannot be a directory: .*--dir",
}


def test_every_command_finds_it_before_torch_is_imported_and_leaves_nothing(project: Path) -> None:
    (project / "odd.toml").write_text(RECIPE.replace("jsonl:own.jsonl", "gsm9k"))
    before = sorted(project.rglob("*"))
    words = [line.split() for line in REFUSED]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(words)], cwd=project, capture_output=True, text=True, check=True
    )
    told = [json.loads(line) for line in done.stdout.splitlines()]
    for (line, said), text in zip(REFUSED.items(), told, strict=True):
        wanted = f"metaagentx: {said.replace('{home}', re.escape(str(project)))}\n2 \\[\\]\n"
        assert re.fullmatch(wanted, text), f"{line}: {text}"
    assert sorted(project.rglob("*")) == before


def test_a_model_that_a_colleague_may_not_read_is_named() -> None:
    with public_directory() as home:
        model = fake_model(home / "model")
        (model / "model.safetensors").chmod(0o600)
        assert re.match(r"refused: \S+/model\.safetensors cannot be read \(.*mode -rw-------", _as_nobody(model))
        (model / "model.safetensors").chmod(0o644)
        assert _as_nobody(model) == "None"
        model.chmod(0o700)
        assert re.match(r"refused: \S+/model cannot be read \(.*mode drwx------, owner root\)", _as_nobody(model))
        said = as_nobody(lambda: check_output_directory(home / "new" / "run"))
        assert re.match(rf"refused: {home} cannot be written \(.*\): .* chmod a\+w {home}, or choose another", said)


def _as_nobody(model: Path) -> str:
    return as_nobody(lambda: check_model(model))


def test_a_new_place_is_new(tmp_path: Path) -> None:
    check_new(tmp_path / "a" / "b")
    with pytest.raises(MetaAgentXError, match="exists already: remove it or choose another path"):
        check_new(tmp_path)
