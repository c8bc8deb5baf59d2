"""Work that can be resumed: its settings are saved beside it, so that nothing made with other settings is mixed in."""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from pydantic_core import from_json, to_jsonable_python

from ..atomic import atomic_write
from ..backends.model_files import model_directory
from ..errors import MetaAgentXError

SHOWN = 60
"""How many characters of a value a message repeats."""
_WEIGHTS = (".safetensors", ".gguf", ".bin", ".pt")
_HASHED_BYTES = 1 << 20


def check_same_settings(file: Path, settings: Mapping[str, object], option: str, work: Iterable[Path]) -> None:
    """Save the settings that a directory is made with, or raise an error if it was made with others.

    `option` is the command-line option that names the directory. Until one of the paths in `work` exists, settings may
    change.
    """
    current = to_jsonable_python(settings, fallback=str)
    existing = next((path for path in work if path.exists()), None)
    if existing is None and not file.is_dir():
        file.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(file, (json.dumps(current, indent=1, ensure_ascii=False) + "\n").encode())
        return
    if existing is not None and not file.exists():
        problem = f"{file.parent} holds {existing.name}, and nothing says which settings it was made with"
        raise MetaAgentXError(f"{problem}: use another {option}, or remove it")
    try:
        saved = from_json(file.read_bytes())
    except (ValueError, OSError):
        saved = None
    if not isinstance(saved, dict):
        raise MetaAgentXError(f"{file} is damaged: remove {file.parent}, or use another {option}")
    differences = list(_differences(dict(_flatten(saved)), dict(_flatten(current))))
    if differences:
        others = f" (and {len(differences) - 1} more)" if len(differences) > 1 else ""
        raise MetaAgentXError(f"{file.parent} was made {differences[0]}{others}: use the same or another {option}")


def _flatten(value: object, name: str = "") -> Iterator[tuple[str, object]]:
    """Yield settings by their dotted names. A list is one value unless it holds sections."""
    if isinstance(value, list) and any(isinstance(entry, dict) for entry in value):
        value = {str(index): entry for index, entry in enumerate(value)}
    if isinstance(value, dict) and (value or not name):
        for key, inner in value.items():
            yield from _flatten(inner, f"{name}.{key}" if name else key)
    else:
        yield name, value


def _differences(old: Mapping[str, object], new: Mapping[str, object]) -> Iterator[str]:
    """Yield `with seed = 0, now 1` for each setting that differs."""
    for name in {**new, **old}:
        before, now = (json.dumps(values.get(name), ensure_ascii=False) for values in (old, new))
        if name not in new:
            yield f"with {name} = {_excerpt(before)}, now without"
        elif name not in old:
            yield f"without {name}, now {_excerpt(now)}"
        elif old[name] != new[name]:
            prefix = os.path.commonprefix([before, now])  # noqa: RUF071 - of texts, character by character
            common = len(prefix) if max(len(before), len(now)) > SHOWN else 0
            yield f"with {name} = {_excerpt(before, common)}, now {_excerpt(now, common)}"


def _excerpt(text: str, common: int = 0) -> str:
    """Return the part of a long text where it begins to differ from another."""
    start = max(0, common - SHOWN // 3)
    part = text[start : start + SHOWN]
    return f"{'...' if start else ''}{part}{'...' if start + SHOWN < len(text) else ''}"


def weights_digest(directory: Path) -> str:
    """Return a digest of the weights in a directory, from the ends of their files; it does not depend on its path."""
    directory = model_directory(directory)
    digest = hashlib.sha256()
    for file in sorted(path for path in directory.rglob("*") if path.suffix in _WEIGHTS and path.is_file()):
        size = file.stat().st_size
        digest.update(f"{file.relative_to(directory)} {size}\n".encode())
        with file.open("rb") as stream:
            digest.update(stream.read(_HASHED_BYTES))
            stream.seek(max(0, size - _HASHED_BYTES))
            digest.update(stream.read())
    return digest.hexdigest()[:16]
