"""Work that goes on after a stop: what it is made with is written down beside it, so that nothing else is mixed in."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, is_dataclass
from pathlib import Path

from ..errors import MetaAgentXError
from .files import write_whole

SHOWN = 60
"""Characters of a value that a message repeats."""
_WEIGHTS = (".safetensors", ".gguf", ".bin", ".pt")
_LOOKED_AT = 1 << 20


def same_settings(file: Path, settings: Mapping[str, object], option: str, work: Iterable[Path]) -> None:
    """Write down what a directory is made with, or refuse to go on there with anything else.

    `option` is what the user names the directory with. As long as there is nothing of `work`, settings may change.
    """
    now = json.loads(json.dumps(settings, default=_plain))
    begun = next((path for path in work if path.exists()), None)
    if begun is None and not file.is_dir():
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, (json.dumps(now, indent=1, ensure_ascii=False) + "\n").encode())
        return
    if begun is not None and not file.exists():
        lost = f"{file.parent} holds {begun.name}, and nothing says which settings it was made with"
        raise MetaAgentXError(f"{lost}: use another {option}, or remove it")
    differences = list(_differences(dict(_flat(_read(file, option))), dict(_flat(now))))
    if differences:
        others = f" (and {len(differences) - 1} more)" if len(differences) > 1 else ""
        raise MetaAgentXError(f"{file.parent} was made {differences[0]}{others}: use the same or another {option}")


def _read(file: Path, option: str) -> Mapping[str, object]:
    try:
        written = json.loads(file.read_bytes())
    except (ValueError, OSError, RecursionError):
        written = None
    if not isinstance(written, dict):
        raise MetaAgentXError(f"{file} is damaged: remove {file.parent}, or use another {option}")
    return written


def _plain(value: object) -> object:
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else str(value)


def _flat(value: object, name: str = "") -> Iterator[tuple[str, object]]:
    """Settings by their dotted names. A list is one value, unless it holds sections."""
    if isinstance(value, list) and any(isinstance(entry, dict) for entry in value):
        value = {str(place): entry for place, entry in enumerate(value)}
    if isinstance(value, dict) and (value or not name):
        for key, inner in value.items():
            yield from _flat(inner, f"{name}.{key}" if name else key)
    else:
        yield name, value


def _differences(old: Mapping[str, object], new: Mapping[str, object]) -> Iterator[str]:
    """`with seed = 0, now 1` for each setting that is not the same."""
    for name in {**new, **old}:
        if name not in new:
            yield f"with {name} = {_cut(old[name])}, now without"
        elif name not in old:
            yield f"without {name}, now {_cut(new[name])}"
        elif old[name] != new[name]:
            was, now = (json.dumps(value, ensure_ascii=False) for value in (old[name], new[name]))
            alike = _alike(was, now) if max(len(was), len(now)) > SHOWN else 0
            yield f"with {name} = {_part(was, alike)}, now {_part(now, alike)}"


def _alike(one: str, other: str) -> int:
    """How many characters they begin with alike."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))


def _cut(value: object) -> str:
    return _part(json.dumps(value, ensure_ascii=False), 0)


def _part(text: str, alike: int) -> str:
    """The part of a long text where it begins to differ from another."""
    start = max(0, alike - SHOWN // 3)
    part = text[start : start + SHOWN]
    return f"{'...' if start else ''}{part}{'...' if start + SHOWN < len(text) else ''}"


def weights_mark(directory: Path) -> str:
    """A name for the weights in a directory, by what the ends of their files hold, wherever the directory is."""
    mark = hashlib.sha256()
    for file in sorted(path for path in directory.rglob("*") if path.suffix in _WEIGHTS and path.is_file()):
        size = file.stat().st_size
        mark.update(f"{file.relative_to(directory)} {size}\n".encode())
        with file.open("rb") as stream:
            mark.update(stream.read(_LOOKED_AT))
            stream.seek(max(0, size - _LOOKED_AT))
            mark.update(stream.read())
    return mark.hexdigest()[:16]
