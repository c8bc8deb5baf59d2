"""Programs that close, wrap or replace standard output are graded by what they print in plain Python."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator

import pytest

from metaagentx.rewards.code import CodeGrader
from metaagentx.types import CodeTests, StdinTest

PRINTS_42 = {
    "with block": "import sys\nwith sys.stdout as f:\n    f.write('42\\n')",
    "with block, then exit": "import sys\nwith sys.stdout as f:\n    f.write('42\\n')\nsys.exit(0)",
    "closed": "import sys\nprint(42)\nsys.stdout.close()",
    "both closed": "import sys\nprint(42)\nsys.stdout.close()\nsys.stderr.close()",
    "wrapped": "import io, sys\nsys.stdout = io.TextIOWrapper(sys.stdout.buffer, encoding='utf-8')\nprint(42)",
    "a wrapper never flushed": "import io, sys\nout = io.TextIOWrapper(sys.stdout.buffer)\nout.write('42')",
    "descriptor opened": "import sys\nsys.stdout = open(1, 'w')\nprint(42)",
    "descriptor opened, never flushed": "out = open(1, 'w')\nout.write('42')",
    "descriptor opened in a function": "def main():\n    out = open(1, 'w')\n    out.write('42')\nmain()",
    "descriptor opened and closed": "with open(1, 'w') as out: out.write('42')",
    "descriptor written": "import os\nos.write(1, b'42')",
    "descriptor of a copy": "import os\ncopy = os.dup(1)\nos.write(copy, b'42')\nos.close(1)",
    "buffer written": "import sys\nwrite = sys.stdout.buffer.write\nwrite(b'42')",
    "none": "import sys\nprint(42)\nsys.stdout = None",
    "written by an exit function": (
        "import atexit, io, sys\nsys.stdout = text = io.StringIO()\n"
        "atexit.register(lambda: sys.__stdout__.write(text.getvalue()))\nprint(42)"
    ),
    "written by a thread": (
        "import threading, time\nout = open(1, 'w')\ndef late():\n    time.sleep(0.05)\n    out.write('42')\n"
        "threading.Thread(target=late).start()"
    ),
    "an own stream": (
        "import io, os, sys\nclass Fast(io.IOBase):\n    def __init__(self): self.parts = []\n"
        "    def write(self, text): self.parts.append(text)\n"
        "    def flush(self):\n        os.write(1, ''.join(self.parts).encode())\n        self.parts.clear()\n"
        "sys.stdout = Fast()\nprint(42)"
    ),
}
FAILS = {
    "wrapped twice": "import io, sys\nfor _ in range(2): sys.stdout = io.TextIOWrapper(sys.stdout.buffer)\nprint(42)",
    "prints after closing": "import sys\nprint(42)\nsys.stdout.close()\nprint(42)",
    "raises after the output": "import sys\nwith sys.stdout as f: f.write('42')\nraise ValueError(1)",
    "exit code 1": "import sys\nprint(42)\nsys.stdout.close()\nsys.exit(1)",
    "prints nothing": "import sys\nsys.stdout.close()",
    "prints more": "import sys\nprint(42)\nout = open(1, 'w')\nout.write('42')",
}


@pytest.fixture(scope="module")
def grader(runner: asyncio.Runner) -> Iterator[CodeGrader]:
    grader = CodeGrader()
    runner.run(grader.__aenter__())
    yield grader
    runner.run(grader.__aexit__(None, None, None))


@pytest.mark.parametrize("name", [*PRINTS_42, *FAILS])
def test_programs_print_what_they_print_in_plain_python(runner: asyncio.Runner, grader: CodeGrader, name: str) -> None:
    source = (PRINTS_42 | FAILS)[name]
    plain = subprocess.run([sys.executable, "-I", "-c", source], capture_output=True, text=True, check=False)
    right = plain.returncode == 0 and plain.stdout.split() == ["42"]
    assert right is (name in PRINTS_42)
    grade = runner.run(grader.grade(source, CodeTests((StdinTest("", "42"),))))
    assert grade.solved is right, grade.reason
