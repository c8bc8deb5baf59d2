import ast
from pathlib import Path

import metaagentx.workflow
from metaagentx.workflow.manual import EXAMPLES, language_manual, language_page
from metaagentx.workflow.protocol import INSTRUCTION
from metaagentx.workflow.reply import LABELS
from metaagentx.workflow.validate import CONSTRUCTORS

DOCUMENT = Path(__file__).parents[2] / "docs" / "language.md"


def test_the_document_is_the_manual() -> None:
    command = "python -m metaagentx.workflow.manual > docs/language.md"
    assert DOCUMENT.read_text(encoding="utf-8") == language_page(), f"stale: run {command}"
    assert language_page().endswith(language_manual()), "what people read is not part of what a teacher reads"


def test_the_manual_holds_what_a_designer_needs() -> None:
    manual = language_manual()
    for label in LABELS:
        assert f"\n{label}: " in manual
    for name, cls in CONSTRUCTORS.items():
        assert f"### `{name}(" in manual
        assert cls.__doc__
    for path in EXAMPLES.glob("*.py"):
        assert path.read_text().rstrip() in manual
    assert INSTRUCTION in manual


def test_every_public_name_says_what_it_is() -> None:
    package = Path(metaagentx.workflow.__file__).parent
    for path in package.glob("*.py"):
        assert ast.get_docstring(ast.parse(path.read_text())), path.name
