"""`metaagentx grade`: grade one answer and say why it is right or wrong."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ..errors import MetaAgentXError

if TYPE_CHECKING:
    from ..types import Grade


def grade(
    kind: Annotated[Literal["math", "code"], typer.Option(help="What is graded.")],
    gold: Annotated[
        list[str] | None, typer.Option(help="math: the right answer, in LaTeX; repeat for several.")
    ] = None,
    answer: Annotated[str, typer.Option(help="math: the answer, in a \\boxed{} or bare.")] = "",
    tolerance: Annotated[list[float] | None, typer.Option(help="math: absolute, as the task states it.")] = None,
    program: Annotated[Path | None, typer.Option(help="code: a file with the program; - for standard input.")] = None,
    tests: Annotated[Path | None, typer.Option(help="code: a JSON file with the tests, see docs/graders.md.")] = None,
) -> None:
    """Grade one answer and say why. Exit code 0: right; 1: wrong; 2: it cannot be graded."""
    import asyncio

    if kind == "math":
        if not gold or not answer:
            raise MetaAgentXError("--kind math needs --gold and --answer")
        result = asyncio.run(_grade_math(tuple(gold), tuple(tolerance or ()), answer))
    else:
        if program is None or tests is None:
            raise MetaAgentXError("--kind code needs --program FILE and --tests FILE")
        result = asyncio.run(_grade_code(program, tests))
    typer.echo(f"{'right' if result.solved else 'wrong'}, score {result.score:g}")
    if result.reason:
        typer.echo(result.reason)
    raise typer.Exit(0 if result.solved else 1)


async def _grade_math(gold: tuple[str, ...], tolerances: tuple[float, ...], answer: str) -> "Grade":
    from ..rewards.graders import Graders
    from ..types import FinalAnswer, MathGold

    parsed = FinalAnswer.parse(answer if "\\boxed" in answer else f"\\boxed{{{answer}}}")
    async with Graders() as graders:
        return await graders.grade_math(parsed, MathGold(gold, tolerances))


async def _grade_code(program: Path, tests: Path) -> "Grade":
    from ..rewards.code import CodeGrader
    from ..tasks.own import read_tests

    source = sys.stdin.read() if str(program) == "-" else _read(program)
    code_tests = read_tests(_read(tests), str(tests))
    async with CodeGrader() as grader:
        return await grader.grade(source, code_tests)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise MetaAgentXError(f"{path} cannot be read: {error}") from None
