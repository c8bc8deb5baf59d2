"""Try a script outside the sandbox: scripted replies, or a model behind an OpenAI-compatible server.

    python -m metaagentx.workflow script.py --question "What is 2 + 2?" --reply '<delivery>4</delivery>'

Nothing is isolated here: the script runs as you, with your files and your network. Run only scripts of your own.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import traceback
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path

from .inputs import LENIENT_INPUT
from .messages import WorkflowTooLarge
from .runtime import Ask, PythonOutcome, WorkflowSession, use
from .validate import validate

PROGRAM = "python -m metaagentx.workflow"
DEFAULT_REPLY = r"<delivery>\boxed{42}</delivery>"
KEY = "OPENAI_API_KEY"
_SECONDS = 600


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return 0 if the script gave an answer, 1 if it did not, 2 if it could not be started."""
    options = _parser().parse_args(arguments)
    try:
        source = _read(options.script, options.lenient)
        reply = _replies(options)
    except ValueError as error:
        sys.stderr.write(f"{PROGRAM}: {error}\n")
        return 2
    sys.stderr.write("This runs the script without a sandbox, with your rights: only for scripts of your own.\n")
    before = {name: sys.modules[name] for name in sys.modules if name.partition(".")[0] == "workflow"}
    try:
        vars(sys.modules["__main__"])[LENIENT_INPUT] = options.lenient
        with use(_Conversation(reply)) as session:
            _run(source, options.script, options.question)
    except (_ServerFailed, WorkflowTooLarge) as error:
        sys.stderr.write(f"{PROGRAM}: {error}\n")
        return 2
    except Exception as error:  # noqa: BLE001  whatever a script raises is its own failure
        in_script = error.__traceback__ and error.__traceback__.tb_next and error.__traceback__.tb_next.tb_next
        traceback.print_exception(type(error), error, in_script)
        return 1
    finally:
        del vars(sys.modules["__main__"])[LENIENT_INPUT]
        _remove_alias()
        sys.modules.update(before)
    return _show_answer(session)


class _ServerFailed(BaseException):
    """The server gave no reply. Not an Exception: a script that catches those must not continue without a reply."""


class _Conversation:
    """Answers asks and prints the conversation."""

    def __init__(self, reply: Callable[[Ask], str]) -> None:
        self._reply = reply
        self._calls = 0

    def __call__(self, ask: Ask) -> str | PythonOutcome:
        if ask.kind == "python":
            return _run_python(ask)
        self._calls += 1
        text = self._reply(ask)
        lines = [f"=== call {self._calls}: {ask.agent}"]
        for message in [*ask.messages, {"role": "reply", "content": text}]:
            lines += [f"--- {message['role']}", message["content"]]
        sys.stdout.write("\n".join(lines) + "\n\n")
        return text


def _parser() -> argparse.ArgumentParser:
    description = "Run a workflow script outside the sandbox and print the conversation and the answer."
    parser = argparse.ArgumentParser(prog=PROGRAM, description=description, allow_abbrev=False)
    parser.add_argument("script", type=Path, help="a file, written as the Designer writes it")
    parser.add_argument("--question", required=True, help="what the script finds as `question`")
    text = "of an agent, in the order of asking; the last one repeats. Without one and without a server: "
    parser.add_argument("--reply", action="append", metavar="TEXT", help=text + DEFAULT_REPLY)
    parser.add_argument("--base-url", metavar="URL", help=f"of an OpenAI-compatible server; {KEY} is sent to it if set")
    parser.add_argument("--model", metavar="NAME", help="of the model on that server")
    parser.add_argument("--lenient", action="store_true", help="ignore unknown keyword arguments, with a note")
    return parser


def _read(path: Path, lenient: bool) -> str:
    """Return the script, if it could run in training."""
    try:
        source = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read as a script: {error}") from None
    for problem in validate(source, lenient):
        raise ValueError(f"{path} is not a valid script: {problem}")
    return source


def _replies(options: argparse.Namespace) -> Callable[[Ask], str]:
    if (options.base_url is None) != (options.model is None):
        raise ValueError("a server needs both --base-url and --model")
    if options.base_url is None:
        left = list(options.reply or [DEFAULT_REPLY])
        return lambda ask: left.pop(0) if len(left) > 1 else left[0]
    if options.reply:
        raise ValueError("the replies come from --reply or from a server, not from both")
    if not options.base_url.startswith(("http://", "https://")):
        raise ValueError(f"--base-url: invalid value {options.base_url}, expected http://... or https://...")
    return lambda ask: _ask_server(options.base_url, options.model, ask)


def _ask_server(base_url: str, model: str, ask: Ask) -> str:
    address = f"{base_url.rstrip('/')}/chat/completions"
    body = json.dumps({"model": model, "messages": list(ask.messages)}).encode()
    headers = {"Content-Type": "application/json"}
    if key := os.environ.get(KEY, "").strip():
        headers["Authorization"] = f"Bearer {key}"
    try:
        request = urllib.request.Request(address, body, headers)
        with urllib.request.urlopen(request, timeout=_SECONDS) as response:
            text = json.load(response)["choices"][0]["message"]["content"]
    except urllib.error.HTTPError as error:
        body_text = " ".join(error.read(500).decode("utf-8", "replace").split())
        raise _ServerFailed(f"{address} refused the call with status {error.code}: {body_text}") from None
    except OSError as error:
        raise _ServerFailed(f"{address} cannot be reached: {getattr(error, 'reason', error)}") from None
    except (ValueError, LookupError, TypeError):
        raise _ServerFailed(f"{address} gave a reply that is not a chat completion") from None
    if not isinstance(text, str):
        raise _ServerFailed(f"{address} gave a chat completion without text")
    return text


def _run_python(ask: Ask) -> PythonOutcome:
    """Run the python tool in a process of its own, without isolation."""
    command = [sys.executable, "-I", "-c", ask.code]
    try:
        done = subprocess.run(
            command, input=ask.stdin, capture_output=True, text=True, timeout=ask.timeout or None, check=False
        )
    except subprocess.TimeoutExpired:
        return PythonOutcome(timed_out=True, returncode=-9)
    return PythonOutcome(done.stdout, done.stderr, done.returncode)


def _run(source: str, path: Path, question: str) -> None:
    """Execute the script, for which this package is the top-level package `workflow`, as in the sandbox."""
    _remove_alias()
    package = __name__.rpartition(".")[0] or __package__ or ""
    for name, module in list(sys.modules.items()):
        if name == package or name.startswith(f"{package}."):
            sys.modules["workflow" + name.removeprefix(package)] = module
    exec(compile(source, str(path), "exec"), {"__name__": "__main__", "question": question})


def _remove_alias() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "workflow"]:
        del sys.modules[name]


def _show_answer(session: WorkflowSession) -> int:
    if session.answer is None:
        sys.stdout.write("No answer: no workflow was run to its end.\n")
        return 1
    sys.stdout.write(f"Answer: {session.answer['value']}\n")
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends it without a word
    sys.exit(main())
