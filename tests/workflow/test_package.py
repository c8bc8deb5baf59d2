import ast
import json
import subprocess
import sys
from pathlib import Path

import metaagentx.workflow

PACKAGE = Path(metaagentx.workflow.__file__).parent


def test_only_the_standard_library_and_relative_imports() -> None:
    for path in PACKAGE.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                modules = [node.module or ""]
            for module in modules:
                assert module.partition(".")[0] in sys.stdlib_module_names, f"{path.name} imports {module}"


def test_the_same_files_are_the_top_level_package_of_a_bare_interpreter(tmp_path: Path) -> None:
    (tmp_path / "workflow").symlink_to(PACKAGE)
    code = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
import workflow, json
from workflow.nodes import EnsembleNode
with workflow.use(lambda ask: "<delivery>5</delivery>") as session:
    workflow.Workflow().add_node(workflow.AgentNode("A", "p")).run("q")
print(json.dumps([session.answer, sorted(sys.modules)]))
"""
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    answer, modules = json.loads(done.stdout)
    assert answer == {"kind": "text", "value": "5", "call": 0}
    heavy = {"validate", "reply", "manual"}
    assert not heavy & {name.removeprefix("workflow.") for name in modules if name.startswith("workflow.")}
    assert not {"asyncio", "threading", "socket", "metaagentx"} & set(modules)


def test_public_names_are_sorted_and_there() -> None:
    names = metaagentx.workflow.__all__
    assert names == sorted(names, key=lambda name: (not name.isupper(), not name[0].isupper(), name))
    assert all(name in vars(metaagentx.workflow) for name in names)
