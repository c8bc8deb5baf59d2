"""The options of `solve`, `design`, `run` and `serve` that choose the system, and the text that a user asks."""

import sys
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import MetaAgentXError

if TYPE_CHECKING:
    from ..system import System

RunOption = Annotated[
    str | None, typer.Option("--run", help="A run, such as runs/tiny or runs/tiny@40. Default step: the best.")
]
SystemOption = Annotated[Path | None, typer.Option("--system", help="A directory that `metaagentx export` wrote.")]
ModelOption = Annotated[
    str | None, typer.Option("--model", help="A model directory, or with --base-url a name on the server.")
]
DesignerOption = Annotated[str | None, typer.Option("--designer", help="Another model for the Designer.")]
BaseURLOption = Annotated[str | None, typer.Option("--base-url", help="URL of an OpenAI-compatible server.")]
KeyOption = Annotated[
    str | None, typer.Option("--api-key-env", help="Variable with the server's API key. Default: OPENAI_API_KEY.")
]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", help="key=value of a recipe, such as rollout.executor_tokens=8192.")
]
ToolOption = Annotated[
    list[str] | None,
    typer.Option("--tool", help="A function that agents may call, as module:function. May be repeated."),
]
McpOption = Annotated[
    list[str] | None,
    typer.Option("--mcp", help="A command that starts an MCP server with tools. May be repeated."),
]
QUESTION_CHARACTERS = 1_000_000


@dataclass(frozen=True, slots=True)
class SystemChoice:
    """Which system a command uses, as its options say."""

    run: str | None = None
    system: Path | None = None
    model: str | None = None
    designer: str | None = None
    base_url: str | None = None
    api_key_env: str | None = None
    tools: Sequence[str] | None = None
    mcp: Sequence[str] | None = None
    overrides: Sequence[str] | None = None

    def open(self) -> "AbstractAsyncContextManager[System]":
        """Return the system to enter; refuse options that do not go together."""
        from ..system import System

        if self.base_url is None and self.api_key_env is not None:
            raise MetaAgentXError("--api-key-env is for a server: give its URL with --base-url")
        tools, mcp, overrides = self.tools or (), self.mcp or (), self.overrides or ()
        local = [f"--{name}" for name in ("run", "system", "model") if getattr(self, name) is not None]
        if self.base_url is not None:
            if self.model is None or self.run is not None:
                raise MetaAgentXError("--base-url needs the name of a model on the server: --model NAME, without --run")
            return System.open(
                self.model,
                base_url=self.base_url,
                api_key_env=self.api_key_env,
                designer=self.designer,
                settings=self.system,
                tools=tools,
                mcp=mcp,
                overrides=overrides,
            )
        if len(local) != 1:
            found = " and ".join(local) or "none"
            raise MetaAgentXError(f"give one of --run, --system and --model (found: {found}), such as --run runs/tiny")
        source = self.run or self.system or self.model
        assert source is not None
        return System.open(source, designer=self.designer, tools=tools, mcp=mcp, overrides=overrides)


def read_question(text: str | None) -> str:
    """Return the question: the text itself, the content of a file of that name, or standard input for `-` or None."""
    if text is None or text == "-":
        if text is None and sys.stdin.isatty():
            raise MetaAgentXError('no question: write it in quotes, such as metaagentx solve "What is 37 * 58?"')
        question = sys.stdin.read(QUESTION_CHARACTERS + 1)
    else:
        question = _file_content(text)
    if not question.strip():
        raise MetaAgentXError("the question is empty: write it in quotes, or give a file or standard input that has it")
    if len(question) > QUESTION_CHARACTERS:
        raise MetaAgentXError(f"the question has more than {QUESTION_CHARACTERS} characters: shorten it")
    return question.strip()


def _file_content(text: str) -> str:
    try:
        path = Path(text)
        if not path.is_file():
            return text
        return path.read_text("utf-8")[: QUESTION_CHARACTERS + 1]
    except UnicodeDecodeError:
        raise MetaAgentXError(f"{text} is not a text in UTF-8: give a text file") from None
    except (OSError, ValueError):  # too long for a file name, or it has a null character
        return text
