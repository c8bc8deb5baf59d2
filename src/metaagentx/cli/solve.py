"""`metaagentx solve`, `design` and `run`: ask a system, see its design, or run a script by hand."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from ..errors import MetaAgentXError
from . import interrupts
from .system_options import (
    BaseURLOption,
    DesignerOption,
    KeyOption,
    McpOption,
    ModelOption,
    RunOption,
    SetOption,
    SystemChoice,
    SystemOption,
    ToolOption,
    read_question,
)
from .terminal_text import for_stream, without_controls

Question = Annotated[str | None, typer.Argument(help="The question, a file that has it, or - for standard input.")]
Designs = Annotated[int, typer.Option(help="Designs whose answers are put to a vote.", min=1, max=64)]
Attempts = Annotated[int, typer.Option(help="How often a design that leads to no answer is drawn.", min=1, max=64)]
AsJSON = Annotated[bool, typer.Option("--json", help="Print answer, script, usage and time as JSON.")]
Save = Annotated[Path | None, typer.Option(help="Directory for the tree; `metaagentx view DIR` shows it.")]


def solve(  # noqa: PLR0913, PLR0917  the options of a command are its parameters
    question: Question = None,
    run: RunOption = None,
    system: SystemOption = None,
    model: ModelOption = None,
    designer: DesignerOption = None,
    base_url: BaseURLOption = None,
    api_key_env: KeyOption = None,
    tool: ToolOption = None,
    mcp: McpOption = None,
    designs: Designs = 1,
    attempts: Attempts = 3,
    as_json: AsJSON = False,
    save: Save = None,
    overrides: SetOption = None,
) -> None:
    """Answer a question with a workflow of its own. The answer alone goes to standard output."""
    from ..runs import command
    from ..system.save import check_save_directory, save_result
    from .solve_display import Display

    text = read_question(question)
    if save is not None:
        check_save_directory(save)
    opened = SystemChoice(run, system, model, designer, base_url, api_key_env, tool, mcp, overrides).open()

    async def work() -> None:
        async with opened as chosen:
            with Display(sys.stdout.isatty() and not as_json) as display:
                result = await chosen.solve(text, designs=designs, attempts=attempts, on_event=display.on_event)
                display.finish(result)
        if save is not None:
            save_result(save, result)
            typer.echo(f"metaagentx: to see how this was solved: {command('view', save)}", err=True)
        if as_json:
            typer.echo(json.dumps(result.to_json(), ensure_ascii=False, indent=2))
        else:
            if result.note:
                typer.echo(f"metaagentx: {result.note}", err=True)
            typer.echo(for_stream(result.answer, sys.stdout))
        if not result.answer:
            raise typer.Exit(1)

    interrupts.run(work())


def design(  # noqa: PLR0913, PLR0917
    question: Question = None,
    run: RunOption = None,
    system: SystemOption = None,
    model: ModelOption = None,
    base_url: BaseURLOption = None,
    api_key_env: KeyOption = None,
    tool: ToolOption = None,
    mcp: McpOption = None,
    overrides: SetOption = None,
) -> None:
    """Print the script that the Designer writes for a question, without running it."""
    text = read_question(question)
    opened = SystemChoice(run, system, model, None, base_url, api_key_env, tool, mcp, overrides).open()

    async def work() -> None:
        async with opened as chosen:
            written = await chosen.design(text)
        typer.echo(for_stream(written.script if written.script is not None else written.call.text, sys.stdout))
        if written.fault is not None:
            typer.echo(f"metaagentx: this design cannot run: {without_controls(written.fault.message)}", err=True)
            raise typer.Exit(1)

    interrupts.run(work())


def run_command(  # noqa: PLR0913, PLR0917
    script: Annotated[Path, typer.Argument(help="A file with a workflow script.")],
    question: Annotated[str, typer.Option(help="The question, a file that has it, or - for standard input.")],
    run: RunOption = None,
    system: SystemOption = None,
    model: ModelOption = None,
    base_url: BaseURLOption = None,
    api_key_env: KeyOption = None,
    tool: ToolOption = None,
    mcp: McpOption = None,
    overrides: SetOption = None,
) -> None:
    """Run a script of your own in the sandbox, with any model as its agents, and print the answer."""
    from ..workflow.validate import validate
    from .solve_display import Display

    try:
        source = script.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise MetaAgentXError(f"{script} cannot be read as a script: {error}") from None
    for problem in validate(source, lenient=True):
        raise MetaAgentXError(f"the script {script} cannot run: {problem}")
    text = read_question(question)
    opened = SystemChoice(run, system, model, None, base_url, api_key_env, tool, mcp, overrides).open()

    async def work() -> None:
        async with opened as chosen:
            with Display(sys.stdout.isatty()) as display:
                execution = await chosen.run(source, text, display.on_event)
        if execution.log:
            typer.echo(for_stream(execution.log.rstrip("\n"), sys.stderr), err=True)
        if execution.answer is not None:
            typer.echo(for_stream(execution.answer.value or execution.answer.text, sys.stdout))
        if execution.fault is not None:
            typer.echo(f"metaagentx: {execution.fault.kind}: {without_controls(execution.fault.message)}", err=True)
            raise typer.Exit(1)

    interrupts.run(work())
