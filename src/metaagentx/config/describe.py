"""The keys of a recipe in words, from its JSON schema: error messages, and the reference in the documentation."""

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic_core import ErrorDetails

from .sections import Config
from .toml import quote, show_value

RENAMED = {"loss.normalise": "loss.normalize"}
"""Keys of earlier versions, and their names now."""
MAX_SHOWN = 60
"""Characters of an invalid value that a message repeats."""
MIN_SIMILARITY = 0.7
"""How similar a key must be to be suggested in place of an unknown one."""

_TYPES = {"integer": "an integer", "number": "a number", "boolean": "true or false", "object": "a table of keys"}
_BOUNDS = {"exclusiveMinimum": ">", "minimum": ">=", "exclusiveMaximum": "<", "maximum": "<="}
Schema = Mapping[str, Any]


def explain(problem: ErrorDetails) -> str:
    """Return what is wrong with a key, and what is expected."""
    if problem["type"] == "value_error":
        return str(problem["ctx"]["error"])
    if problem["type"] == "extra_forbidden":
        return _explain_unknown(problem["loc"])
    root = Config.model_json_schema()
    schema: Schema = root
    key: list[str] = []
    for part in problem["loc"]:
        if isinstance(part, int):
            schema = schema["items"]
        elif part in schema.get("properties", {}):
            schema = schema["properties"][part]
        elif schema.get("additionalProperties"):
            schema = schema["additionalProperties"]
        else:  # not a key but a member of a union; the words for the union name all members
            break
        schema = _resolve(schema, root)
        key.append(str(part))
    name, expected = ".".join(key), _expected(schema)
    if problem["type"] == "missing":
        return f'missing key "{name}", expected {expected}'
    value = show_value(problem["input"])
    shown = value if len(value) <= MAX_SHOWN else f"{value[:MAX_SHOWN]}..."
    return f"{name}: invalid value {shown}, expected {expected}"


def _explain_unknown(parts: Sequence[int | str]) -> str:
    key = ".".join(map(str, parts))
    if key in RENAMED:
        return f'unknown key "{key}"; it is now "{RENAMED[key]}"'
    is_stage = parts[0] == "stages"
    section, leaf = "stages.N" if is_stage else ".".join(map(str, parts[:-1])), str(parts[-1])
    tables = _tables()

    def similarity(candidate: tuple[str, str]) -> float:
        return difflib.SequenceMatcher(None, leaf, candidate[1]).ratio() + 0.1 * (section == candidate[0])

    best = max(((table, name) for table, schema in tables.items() for name in schema["properties"]), key=similarity)
    if similarity(best) >= MIN_SIMILARITY:
        number = parts[1] if is_stage else 0
        suggestion = ".".join(filter(None, best)).replace("stages.N", f"stages.{number}")
        return f'unknown key {quote(key)}; did you mean "{suggestion}"?'
    owner = "a stage" if is_stage else section or "a recipe"
    return f"unknown key {quote(key)}; remove it: {owner} has {', '.join(tables[section]['properties'])}"


def reference() -> str:
    """Return all keys in Markdown, with their values, defaults and meanings."""
    titles = {"": "The whole run", "stages.N": "`stages`"}
    return "\n".join(_section(titles.get(name, f"`[{name}]`"), schema) for name, schema in _tables().items())


def _section(title: str, schema: Schema) -> str:
    rows = [f"## {title}", "", schema["description"], "", "| key | value | default | meaning |", "|---|---|---|---|"]
    for name, field in schema["properties"].items():
        if "$ref" in field:
            continue
        default = field.get("default")
        required = name in schema.get("required", ())
        shown = "required" if required else "not set" if default is None else f"`{show_value(default)}`"
        rows.append(f"| `{name}` | {_expected(field)} | {shown} | {' '.join(field['description'].split())} |")
    return "\n".join([*rows, ""])


def _tables() -> dict[str, Schema]:
    """Return the schema of each table of a recipe: "" is the top level, "stages.N" a stage."""
    root = Config.model_json_schema()
    tables: dict[str, Schema] = {"": root}
    for name, field in root["properties"].items():
        if "$ref" in field:
            tables[name] = _resolve(field, root)
        elif "$ref" in field.get("items", {}):
            tables[f"{name}.N"] = _resolve(field["items"], root)
    return tables


def _resolve(schema: Schema, root: Schema) -> Schema:
    return root["$defs"][schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema


def _expected(schema: Schema) -> str:
    """Return in words what a value must be."""
    if "anyOf" in schema:
        return _either([_expected(option) for option in schema["anyOf"] if option.get("type") != "null"])
    if "const" in schema or "enum" in schema:
        return _either([show_value(value) for value in schema.get("enum") or [schema["const"]]])
    kind = schema.get("type", "object")
    if kind == "array":
        items = "tables" if "$ref" in schema["items"] else _expected(schema["items"])
        return f"{'a non-empty list' if 'minItems' in schema else 'a list'} of {items}"
    if kind == "string":
        plain = "a non-empty string" if "minLength" in schema else "a string"
        return "a path" if schema.get("format") == "path" else plain
    if schema.get("additionalProperties"):
        return f"a table, each value {_expected(schema['additionalProperties'])}"
    bounds = [f"{sign} {schema[bound]:_}" for bound, sign in _BOUNDS.items() if bound in schema]
    return " ".join([_TYPES[kind], " and ".join(bounds)]).strip()


def _either(words: Sequence[str]) -> str:
    return " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
