"""Dependencies point one way: lower layers never import higher ones, and heavy libraries stay where they belong."""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import metaagentx

SOURCE = Path(metaagentx.__file__).parent
ROOT = Path(__file__).parent.parent
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()

BLOCK = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)

# Lowest first; a module may import from the groups before its own.
LAYERS = [
    {"errors", "options"},
    {"workflow"},
    {"sandbox"},
    {"types", "policy", "atomic", "progress", "web"},
    {"tasks", "backends", "provenance"},
    {"config"},
    {"rewards", "tools"},
    {"rollout"},
    {"runs"},
    {"evaluation"},
    {"training"},
    {"coldstart", "viewer"},
    {"system"},
    {"serve"},
    {"cli"},
]
# The two that stand on nothing but the standard library: they are copied into the jail.
ALONE = ("workflow", "sandbox/inside")
HEAVY = {"torch", "transformers", "peft", "vllm", "ray", "openai", "tinker", "httpx"}


def imports(file: Path) -> Iterator[tuple[str, bool]]:
    """Absolute names of what a file imports, and whether the import was written as a relative one."""
    package = ("metaagentx", *file.relative_to(SOURCE).parent.parts)
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, False
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join((*base, *([node.module] if node.module else [])))
            for alias in node.names:
                yield f"{module}.{alias.name}", node.level > 0


def files() -> list[Path]:
    return [file for file in SOURCE.rglob("*.py") if "examples" not in file.parts]


def layer_of(name: str) -> int:
    return next(index for index, group in enumerate(LAYERS) if name in group)


def test_every_module_has_a_layer_and_every_layer_exists() -> None:
    known = set().union(*LAYERS)
    top = {file.relative_to(SOURCE).parts[0].removesuffix(".py") for file in files()} - {"__init__", "__main__"}
    assert top == known, f"say in tests/test_layers.py where these belong: {sorted(top ^ known)}"


def test_lower_layers_never_import_higher_ones() -> None:
    wrong = []
    for file in files():
        mine = file.relative_to(SOURCE).parts[0].removesuffix(".py")
        for name, _ in imports(file):
            parts = name.split(".")
            if parts[0] != "metaagentx" or len(parts) == 1 or mine == "__init__":
                continue
            other = parts[1]
            if other != mine and other in set().union(*LAYERS) and layer_of(other) >= layer_of(mine):
                wrong.append(f"{file.relative_to(SOURCE)} imports {name}")
    assert not wrong


def test_the_language_and_the_inside_of_the_sandbox_stand_alone() -> None:
    for part in ALONE:
        for file in (SOURCE / part).rglob("*.py"):
            if "examples" in file.parts:
                continue
            home = f"metaagentx.{part.replace('/', '.')}"
            for name, relative in imports(file):
                if relative:
                    assert name.startswith(f"{home}."), f"{file.name} reaches out of {part}: {name}"
                else:
                    assert name.split(".")[0] in sys.stdlib_module_names, f"{file.name} imports {name}"


def test_heavy_libraries_are_imported_by_backends_only() -> None:
    for file in files():
        if "backends" in file.parts:
            continue
        assert not HEAVY & {name.split(".")[0] for name, _ in imports(file)}, file


def test_nothing_unpickles() -> None:
    for file in files():
        names = {name.split(".")[0] for name, _ in imports(file)}
        assert not names & {"pickle", "marshal", "shelve", "dill", "cloudpickle"}, file


def paths_in(text: str) -> set[str]:
    """What is written as the path of a Python file."""
    return set(re.findall(r"[\w/]+\.py\b", text))


def test_the_architecture_page_has_every_room_in_the_order_of_the_layers() -> None:
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \|", ARCHITECTURE, re.MULTILINE)
    assert [int(layer) for layer, _ in rows] == sorted(int(layer) for layer, _ in rows)
    layers = [{room for layer, room in rows if int(layer) == number} for number in range(1, len(LAYERS) + 1)]
    assert layers == LAYERS and len(rows) == len(set().union(*LAYERS))


def test_files_and_functions_that_the_architecture_page_names_exist() -> None:
    named = paths_in(BLOCK.sub("", ARCHITECTURE))
    assert len(named) > 20
    for path in named:
        assert (SOURCE / path).is_file() or (ROOT / path).is_file(), path
    steps = re.findall(r"^\| `([\w/]+\.py)` \| ([^|]+) \|", ARCHITECTURE, re.MULTILINE)
    assert len(steps) > 20
    for path, functions in steps:
        nodes = ast.walk(ast.parse((SOURCE / path).read_text()))
        defined = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
        assert set(re.findall(r"`(\w+)`", functions)) <= defined, f"{path} defines not all of {functions}"


def test_files_that_the_guide_for_contributors_names_exist() -> None:
    named = paths_in((ROOT / "CONTRIBUTING.md").read_text())
    assert len(named) > 15
    for path in named:
        assert (SOURCE / path).is_file() or (ROOT / path).is_file(), path
