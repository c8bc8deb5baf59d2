"""The command line in processes that start quickly: each is forked from one that has imported everything.

Importing torch takes seconds, and tests that kill trainers start many.
"""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

# Reads a command a line, runs it in a fork, and says the number of its process and then how it ended.
_MOTHER = """
import json, os, resource, sys
import metaagentx.backends.local.build, metaagentx.cli.assembly
import peft, transformers.models.qwen3.modeling_qwen3
from metaagentx.cli import main as cli
print("ready", flush=True)
for line in sys.stdin:
    words, output, largest, place = json.loads(line)
    child = os.fork()
    if child == 0:
        for stream, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(f"{output}.{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
        if largest:
            resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))
        os.chdir(place or ".")
        sys.argv = ["metaagentx", *words]
        try:
            cli.main()
        except SystemExit as ended:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(int(ended.code or 0))
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@dataclass(frozen=True)
class Ended:
    """How a trainer ended."""

    code: int
    out: str
    err: str


class Mother:
    """Starts trainers, one at a time."""

    def __init__(self, output: Path) -> None:
        self._output = output
        self._process = subprocess.Popen(
            [sys.executable, "-c", _MOTHER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._line() == "ready"

    def start(self, *words: object, largest_file: int = 0, command: str = "train", cwd: Path | None = None) -> int:
        """Begin `metaagentx train`, or another command, with these words; the number of its process."""
        return self.start_command(command, *words, largest_file=largest_file, cwd=cwd)

    def start_command(self, *words: object, largest_file: int = 0, cwd: Path | None = None) -> int:
        """Begin any command."""
        assert self._process.stdin
        command = [str(word) for word in words]
        place = str(cwd) if cwd else ""
        self._process.stdin.write(json.dumps([command, str(self._output), largest_file, place]) + "\n")
        self._process.stdin.flush()
        return int(self._line())

    def wait(self) -> Ended:
        """Until the trainer has ended."""
        code = int(self._line())
        return Ended(code, *(Path(f"{self._output}.{name}").read_text() for name in ("out", "err")))

    def run(self, *words: object, largest_file: int = 0, command: str = "train", cwd: Path | None = None) -> Ended:
        """Both."""
        self.start(*words, largest_file=largest_file, command=command, cwd=cwd)
        return self.wait()

    def kill(self, trainer: int, how: int) -> Ended:
        """End a trainer by a signal."""
        os.kill(trainer, how)
        return self.wait()

    def close(self) -> None:
        """Let the mother end."""
        self._process.communicate()

    def _line(self) -> str:
        assert self._process.stdout
        return self._process.stdout.readline().strip()
