"""The recipes that come with the package, by name."""

import difflib
from pathlib import Path

from ..errors import MetaAgentXError

BUNDLED = Path(__file__).parent.parent / "recipes"


def bundled_recipes() -> dict[str, Path]:
    """Every recipe of the package, by its name, in alphabetical order."""
    return {path.stem: path for path in sorted(BUNDLED.glob("*.toml"))}


def is_bundled(path: Path) -> bool:
    """Whether a recipe is one of the package's, reached by whatever path."""
    return path.resolve().parent == BUNDLED.resolve()


def bundled_recipe(name: str) -> Path:
    """The bundled recipe of this name."""
    known = bundled_recipes()
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else "`metaagentx recipes list` shows them"
        raise MetaAgentXError(f"there is no bundled recipe {name!r}; {hint}")
    return known[name]


def find_recipe(text: str) -> Path:
    """The recipe that a user names: a path to a file, or the name of a bundled recipe."""
    path = Path(text)
    if path.is_file() or path.suffix or len(path.parts) != 1:
        return path
    return bundled_recipe(text)
