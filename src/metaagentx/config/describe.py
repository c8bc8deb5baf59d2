"""What keys there are, in words: for the message that refuses a value, and for the reference in the documentation."""

import difflib
import re
from collections.abc import Iterator, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeGuard, Union, get_args, get_origin, get_type_hints

from pydantic_core import ErrorDetails

from .sections import Config, Section
from .toml import quote, write_key, write_value

LONGEST_SHOWN = 60
"""Characters of a wrong value that a message repeats."""
LIKE_ENOUGH = 0.7
"""How alike a key must be to be suggested for an unknown one."""


def explain(problem: ErrorDetails) -> str:
    """What is wrong with a key and what to write instead."""
    if problem["type"] == "value_error":
        return str(problem["ctx"]["error"])
    if problem["type"] == "extra_forbidden":
        return _explain_unknown(problem["loc"])
    kind: Any = Config
    parts: list[int | str] = []
    for part in problem["loc"]:
        kind = _bare(kind)
        if get_origin(kind) is list:
            kind = get_args(kind)[0]
        elif _is_section(kind):
            kind = _kinds(kind)[str(part)]
        else:  # which member of a union it is about; the words for it name them all
            break
        parts.append(part)
    key = write_key(parts)
    if problem["type"] == "missing":
        return f"{key} is missing: give it {_words(kind)}"
    value = write_value(problem["input"])
    shown = value if len(value) <= LONGEST_SHOWN else f"{value[:LONGEST_SHOWN]}..."
    return f"{key} = {shown} is refused: it must be {_words(kind)}"


def _explain_unknown(parts: Sequence[int | str]) -> str:
    key = write_key(parts)
    section, _, leaf = re.sub(r"^stages\.\d+", "stages.N", key).rpartition(".")

    def likeness(name: str) -> float:
        other_section, _, other_leaf = name.rpartition(".")
        return difflib.SequenceMatcher(None, leaf, other_leaf).ratio() + 0.1 * (section == other_section)

    names = list(_names())
    best = max(names, key=likeness)
    if likeness(best) >= LIKE_ENOUGH:
        number = parts[1] if section == "stages.N" else 0
        return f"{key} is no key: did you mean {best.replace('stages.N', f'stages.{number}')}?"
    siblings = [name.rpartition(".")[2] for name in names if name.rpartition(".")[0] == section]
    owner = "a stage" if section == "stages.N" else section or "a recipe"
    return f"{key} is no key: take it out; {owner} has {', '.join(siblings)}"


def reference() -> str:
    """All keys in Markdown: what each may be, what it is when a recipe does not say, and what it means."""
    parts = [_table("The whole run", Config)]
    parts += [_table(f"`[{name}]`" if name != "stages" else "`stages`", section) for name, section in _sections()]
    return "\n".join(parts)


def _table(title: str, section: type[Section]) -> str:
    rows = [f"## {title}", "", str(section.__doc__), "", "| key | value | default | meaning |", "|---|---|---|---|"]
    for name, kind in _kinds(section).items():
        if _is_section(kind):
            continue
        field = section.model_fields[name]
        default = field.get_default(call_default_factory=True)
        shown = "required" if field.is_required() else "not set" if default is None else f"`{write_value(default)}`"
        rows.append(f"| `{name}` | {_words(kind)} | {shown} | {field.description} |")
    return "\n".join([*rows, ""])


def _names() -> Iterator[str]:
    """All keys as overrides have them, sections too; N stands for the number of a stage."""
    yield from _kinds(Config)
    for name, section in _sections():
        yield from (f"{'stages.N' if name == 'stages' else name}.{key}" for key in _kinds(section))


def _sections() -> Iterator[tuple[str, type[Section]]]:
    for name, kind in _kinds(Config).items():
        inner = get_args(_bare(kind))[0] if get_origin(_bare(kind)) is list else kind
        if _is_section(inner):
            yield name, inner


def _kinds(section: type[Section]) -> dict[str, Any]:
    """The annotations of a section's keys, with their words."""
    hints = get_type_hints(section, include_extras=True)
    return {name: hints[name] for name in section.model_fields}


def _is_section(kind: object) -> TypeGuard[type[Section]]:
    return isinstance(kind, type) and issubclass(kind, Section)


def _bare(kind: Any) -> Any:
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def _words(kind: Any) -> str:
    """What a value must be."""
    origin, members = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return str(members[-1])
    if origin is Literal:
        return _either([quote(member) for member in members])
    if origin in (Union, UnionType):
        return _either([_words(member) for member in members if member is not NoneType])
    if origin is list:
        return f"a list of {_words(members[0])}"
    return "true or false" if kind is bool else "a section with keys of its own"


def _either(words: Sequence[str]) -> str:
    return " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
