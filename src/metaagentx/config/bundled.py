"""The recipes that are part of the package, by name."""

import difflib
from pathlib import Path

from ..errors import MetaAgentXError

BUNDLED = Path(__file__).parent.parent / "recipes"


def bundled_recipes() -> dict[str, Path]:
    """Return every recipe of the package by its name, in alphabetical order."""
    return {path.stem: path for path in sorted(BUNDLED.glob("*.toml"))}


def is_bundled(path: Path) -> bool:
    """Return whether a path leads to a recipe of the package, also through links."""
    return path.resolve().parent == BUNDLED.resolve()


def bundled_recipe(name: str) -> Path:
    """Return the path of the bundled recipe with this name."""
    recipes = bundled_recipes()
    if name not in recipes:
        close = difflib.get_close_matches(name, recipes, n=1)
        hint = f"did you mean {close[0]!r}?" if close else "`metaagentx recipes list` lists them"
        raise MetaAgentXError(f"unknown recipe {name!r}; {hint}")
    return recipes[name]


def find_recipe(text: str) -> Path:
    """Return the path of a recipe that is given as a path or as the name of a bundled recipe."""
    path = Path(text)
    if path.is_file() or path.suffix or len(path.parts) != 1:
        return path
    return bundled_recipe(text)
