"""A run that is killed, however often and whenever, ends as if it had not been: the same metrics, the same weights.

Each life is the command line itself in a process of its own, forked from one that has imported everything: importing
torch would otherwise take most of the time.
"""

import json
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from metaagentx.runs import Run
from tests.schooled import THINK, VOTE, school, write_recipe
from tests.training import timeless

KILLS = 10
STEPS = 8
STAGES = "{ steps = 1, designer = 1e-3 }, { steps = 2, executor = 1e-3 }"
SETTINGS = [
    "rollout.designs=2", "rollout.executions=2", "rollout.designer_tokens=64", "tasks.per_step=2", "tasks.held_out=2",
    "run.checkpoint_every=2", "run.keep_checkpoints=4", "evaluation.every=4", "evaluation.tasks=2",
]  # fmt: skip

# Reads a command a line, runs it in a fork and says the number of the process, then how it ended.
MOTHER = """
import json, os, sys
import metaagentx.backends.local.build, metaagentx.session
import peft, transformers.models.qwen3.modeling_qwen3
from metaagentx import cli
print("ready", flush=True)
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        sys.argv = ["metaagentx", *json.loads(line)]
        try:
            cli.main()
        except SystemExit as ended:
            sys.stderr.flush()
            os._exit(int(ended.code or 0))
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Mother:
    """Starts trainers quickly."""

    def __init__(self, log: Path) -> None:
        self.log = log
        with log.open("w") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-c", MOTHER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, text=True
            )
        assert self._line() == "ready"

    def start(self, *words: object) -> int:
        assert self._process.stdin
        self._process.stdin.write(json.dumps([str(word) for word in ("train", *words)]) + "\n")
        self._process.stdin.flush()
        while not (line := self._line()).isdecimal():
            pass  # what an earlier trainer printed
        return int(line)

    def ended(self) -> int:
        while not re.fullmatch(r"-?\d+", line := self._line()):
            pass
        return int(line)

    def run(self, *words: object) -> None:
        self.start(*words)
        assert self.ended() == 0, self.log.read_text()

    def close(self) -> None:
        self._process.communicate()

    def _line(self) -> str:
        assert self._process.stdout
        line = self._process.stdout.readline()
        assert line, self.log.read_text()
        return line.strip()
