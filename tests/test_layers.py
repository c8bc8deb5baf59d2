"""Dependencies point one way: lower layers never import higher ones, and heavy libraries stay where they belong."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import metaagentx

SOURCE = Path(metaagentx.__file__).parent

# Lowest first; a module may import from the groups before its own. Names not written yet are harmless.
LAYERS = [
    {"errors"},
    {"workflow"},
    {"sandbox"},
    {"types"},
    {"provenance"},
    {"policy"},
    {"config"},
    {"tasks"},
    {"rewards"},
    {"calls"},
    {"designer", "executor"},
    {"rollout"},
    {"credit", "stages", "batching", "metrics"},
    {"settings", "evaluate"},
    {"runs", "trees", "progress", "loggers"},
    {"backends"},
    {"teacher", "coldstart"},
    {"standstill"},
    {"trainer", "sft"},
    {"preflight"},
    {"session"},
    {"evaluation", "collection"},
    {"report", "viewer", "doctor"},
    {"quickstart"},
    {"interrupts"},
    {
        "doctor_view",
        "cli_grade",
        "cli_tasks",
        "cli_model",
        "cli_train",
        "cli_eval",
        "cli_learn",
        "cli_report",
        "cli_recipes",
    },
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


def test_every_module_has_a_layer() -> None:
    known = set().union(*LAYERS)
    top = {file.relative_to(SOURCE).parts[0].removesuffix(".py") for file in files()} - {"__init__", "__main__"}
    assert top <= known, f"say in tests/test_layers.py where these belong: {sorted(top - known)}"


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
