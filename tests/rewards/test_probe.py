"""Users' own graders are found beside their tasks, and what is wrong with one is said before anything is loaded."""

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from metaagentx.errors import MetaAgentXError
from metaagentx.rewards.graders import Graders
from metaagentx.rewards.probe import check_graders
from metaagentx.rewards.workers import GraderLimits
from metaagentx.types import CustomGrader, FinalAnswer

LIMITS = GraderLimits(cpu_seconds=0.5, wall_seconds=0.5, memory_bytes=256 << 20, start_seconds=5)
GRADERS = """
import helper

def good(answer, data):
    return answer == data[helper.KEY]

def raises(answer, data):
    return data["nothing"]

def nonsense(answer, data):
    return "yes"

def hangs(answer, data):
    import time
    time.sleep(60)

def exits(answer, data):
    import os
    os._exit(3)
"""


@pytest.fixture
def beside(tmp_path: Path) -> Path:
    """A file of tasks with graders beside it, none of which is where Python looks."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "rain_graders.py").write_text(GRADERS)
    (tmp_path / "mine" / "helper.py").write_text("KEY = 'full'")
    (tmp_path / "mine" / "broken_graders.py").write_text("import no_such_helper\n")
    (tmp_path / "mine" / "stuck_graders.py").write_text("import time\ntime.sleep(60)\n")
    return tmp_path / "mine" / "tasks.jsonl"


def test_a_grader_is_looked_for_beside_its_tasks_then_here_then_on_the_path(
    runner: asyncio.Runner, beside: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    (here / "rain_graders.py").write_text("def good(answer, data):\n    return 0.25\n")
    (here / "only_here.py").write_text("def good(answer, data):\n    return 0.5\n")
    monkeypatch.chdir(here)

    async def scores() -> list[float]:
        async with Graders(workers=2) as pool:
            graders = [
                CustomGrader("rain_graders:good", {"full": "a"}, str(beside)),
                CustomGrader("rain_graders:good", None),
                CustomGrader("only_here:good", None, str(beside)),
                CustomGrader("own_graders:yes", None, str(beside)),
            ]
            await check_graders([*graders, *graders])
            return [(await pool.grade_custom(FinalAnswer.parse("a"), grader)).score for grader in graders]

    assert runner.run(scores()) == [1.0, 0.25, 0.5, 0.0]


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("no_graders:f", r"no module no_graders, neither in \S+/mine, .+ nor .*: put no_graders\.py beside"),
        ("rain_graders:god", r"rain_graders has no function god .*/mine/rain_graders\.py\); did you mean good\?"),
        ("broken_graders:f", r"importing .+/broken_graders\.py raised ModuleNotFoundError: .*'no_such_helper'"),
        ("rain_graders:raises", r"rain_graders:raises raised KeyError: 'nothing', when it was tried with the answer"),
        ("rain_graders:nonsense", r"returned 'yes'; a grader returns a bool or a number from 0 to 1, when"),
        ("rain_graders:hangs", r"it took longer than 0\.5 s \(0\.5 s by the clock\), when it was tried"),
        ("rain_graders:exits", r"it crashed, when it was tried .*exit code 3"),
    ],
)
def test_a_grader_that_cannot_be_used_is_one_line(
    runner: asyncio.Runner, beside: Path, function: str, said: str
) -> None:
    with pytest.raises(MetaAgentXError) as refused:
        runner.run(check_graders([CustomGrader(function, {"full": "a"}, str(beside))], LIMITS))
    start = f"the grader {function} of {beside} cannot be used: "
    assert re.match(re.escape(start) + ".*" + said, str(refused.value)), refused.value
    assert "\n" not in str(refused.value)


def test_a_module_that_never_ends_its_import_is_one_line(runner: asyncio.Runner, beside: Path) -> None:
    limits = GraderLimits(start_seconds=1)
    with pytest.raises(MetaAgentXError, match=r"stuck_graders:f of \S+ cannot be used: it was not ready after 1 s"):
        runner.run(check_graders([CustomGrader("stuck_graders:f", None, str(beside))], limits))


def test_the_probe_needs_no_torch(tmp_path: Path) -> None:
    code = "import sys, metaagentx.cli.preflight; print(sorted({'torch', 'transformers', 'sympy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=os.sep, check=True)
    assert done.stdout == "[]\n"
