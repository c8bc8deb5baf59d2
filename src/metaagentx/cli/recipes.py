"""`metaagentx recipes`: the recipes that come with the package."""

from pathlib import Path
from typing import Annotated

import typer

from ..errors import MetaAgentXError

recipes_app = typer.Typer(help="List and copy the bundled recipes.", no_args_is_help=True, add_completion=False)


@recipes_app.command("list")
def list_recipes() -> None:
    """List the bundled recipes. `metaagentx train NAME` trains with one of them."""
    from ..config.bundled import bundled_recipes

    recipes = bundled_recipes()
    width = max(map(len, recipes))
    for name, path in recipes.items():
        typer.echo(f"{name:{width}}  {_summary(path.read_text('utf-8'))}")


@recipes_app.command("copy")
def copy_recipe(
    name: Annotated[str, typer.Argument(help="Name of a bundled recipe, such as tiny.")],
    to: Annotated[Path | None, typer.Argument(help="New file. Default: NAME.toml.")] = None,
) -> None:
    """Copy a bundled recipe to a file that you can edit."""
    from ..config.bundled import bundled_recipe

    source = bundled_recipe(name)
    target = to or Path(f"{name}.toml")
    target = target / f"{name}.toml" if target.is_dir() else target
    try:
        with target.open("x", encoding="utf-8") as file:
            file.write(source.read_text("utf-8"))
    except FileExistsError:
        raise MetaAgentXError(f"{target} exists already: choose another file name") from None
    except OSError as error:
        raise MetaAgentXError(f"{target} cannot be written: {error.strerror}") from None
    typer.echo(target)


def _summary(recipe: str) -> str:
    """Return the first sentence of the comment at the top of a recipe."""
    comment = recipe.partition("\n#\n")[0].replace("\n# ", " ").removeprefix("# ")
    return comment.partition(". ")[0].removesuffix(".") + "."
