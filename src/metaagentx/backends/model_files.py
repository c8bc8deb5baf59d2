"""Whether a directory holds a model, by names, sizes and headers of its files. Without torch: it takes milliseconds.

What only loading can tell (an unknown architecture, weights that do not fit) is found when the model is loaded.
"""

import json
import shlex
import struct
from collections.abc import Iterator
from pathlib import Path

from ..errors import MetaAgentXError, path_problem

_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.*", "*vocab*", "spiece.model", "*.tiktoken", "*.model")
_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_LONGEST_HEADER = 100_000_000


def check_model(path: Path, gguf_file: str | None = None, origin: str = "") -> None:
    """Refuse a directory that is no model. `origin` says where a relative path to it was written."""
    try:
        _check(path, gguf_file, origin)
    except OSError as error:
        raise MetaAgentXError(path_problem(error, "read") or f"{path} cannot be read: {error}") from error


def check_adapter(path: Path) -> None:
    """The same for a LoRA."""
    try:
        for name in ("adapter_config.json", "adapter_model.safetensors"):
            _check_readable(path / name)
        _check_safetensors(path / "adapter_model.safetensors")
    except OSError as error:
        raise MetaAgentXError(path_problem(error, "read") or f"{path} cannot be read: {error}") from error


def _check(path: Path, gguf_file: str | None, origin: str) -> None:
    try:
        names = {file.name for file in path.iterdir()}
    except FileNotFoundError:
        raise MetaAgentXError(_missing(path, origin)) from None
    except NotADirectoryError:
        raise MetaAgentXError(f"{path} is a file, and a model is a directory: name the directory{origin}") from None
    if gguf_file is not None:
        if gguf_file not in names and not (path / gguf_file).is_file():
            raise MetaAgentXError(f"there is no file {gguf_file} in {path}: model.gguf_file names a file of it")
        return _check_readable(path / gguf_file)
    if "config.json" not in names:
        raise MetaAgentXError(
            f"{path} is not a model directory: it has no config.json (a GGUF file is named with gguf_file)"
        )
    _read_object(path / "config.json")
    tokenizers = [file for pattern in _TOKENIZERS for file in path.glob(pattern)]
    if not tokenizers:
        raise MetaAgentXError(f"{path} has no tokenizer: copy tokenizer.json from where the model came from")
    weights = sorted(_weights(path))
    if not weights:
        raise MetaAgentXError(f"{path} has no weights: copy model.safetensors from where the model came from")
    for file in {*tokenizers, *weights}:
        _check_readable(file)
    for file in weights:
        if file.suffix == ".safetensors":
            _check_safetensors(file)
    return None


def _missing(path: Path, origin: str) -> str:
    if path.is_symlink():
        return f"there is no model at {path}{origin}: it is a symbolic link that leads nowhere"
    return f"there is no model at {path}{origin}: {how_to_get(path)}"


def how_to_get(path: Path) -> str:
    """Two commands that put a model into this directory."""
    place = shlex.quote(str(path))
    return (
        f"`metaagentx model new {place}` makes a small one, `hf download NAME --local-dir {place}` fetches one from "
        "the Hugging Face hub"
    )


def _weights(path: Path) -> Iterator[Path]:
    """The files of the weights, with those that an index names and that may be missing."""
    yield from path.glob("*.safetensors")
    yield from path.glob("pytorch_model*.bin")
    for name in _INDEXES:
        if (path / name).is_file():
            shards = _read_object(path / name).get("weight_map")
            for shard in sorted(set(shards.values())) if isinstance(shards, dict) else ():
                if not (path / str(shard)).is_file():
                    raise MetaAgentXError(f"{path / str(shard)} is missing, and {name} names it: copy it there")


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
    """Its header says how long it is: a copy that was cut off is shorter."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        start = stream.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else size
        header = stream.read(length) if length <= min(size, _LONGEST_HEADER) else b""
    try:
        tensors = json.loads(header)
        ends = [tensor["data_offsets"][1] for name, tensor in tensors.items() if name != "__metadata__"]
        wanted = 8 + length + max(ends, default=0)
    except (ValueError, RecursionError, AttributeError, KeyError, TypeError, IndexError):
        wanted = -1
    if wanted != size:
        told = "its header cannot be read" if wanted < 0 else f"it has {size} bytes of {wanted}"
        raise MetaAgentXError(f"{file} is truncated or not a safetensors file ({told}): copy it again")
