"""A rehearsal warms a fork server and leaves nothing behind that a run could see."""

import asyncio

from metaagentx.sandbox import Limits, Sandbox, Verdict
from metaagentx.sandbox.frames import JSON
from metaagentx.workflow.rehearsal import REHEARSAL

PROBE = """
import door, random, sys, resource
import workflow
from workflow import runtime
session = runtime.current_session()
names = sorted(name for name in globals() if not name.startswith("__"))
first = door.transport.send({"first": True})
door.answer({"asks": len(session.asks), "answer": session.answer, "notes": session.notes, "depth": session.depth,
             "names": names, "first": first, "random": random.random(), "input": sys.stdin.read()})
"""


def test_a_run_sees_nothing_of_a_rehearsal(runner: asyncio.Runner) -> None:
    async def check() -> None:
        async def reply(body: JSON) -> JSON:
            return {}

        async with Sandbox(servers=1, max_runs=8) as sandbox:
            result = await sandbox.run(PROBE, on_ask=reply)
            assert (result.verdict, result.stdout, result.stderr) == (Verdict.OK, "", "")
            assert isinstance(result.answer, dict)
            names = ["door", "names", "random", "resource", "runtime", "session", "sys", "workflow"]
            assert result.answer.pop("names") == [name for name in names if name != "names"]
            assert result.answer.pop("random") == 0.8444218515250481  # of the seed 0
            assert result.answer == {"asks": 0, "answer": None, "notes": [], "depth": 0, "first": 1, "input": ""}

    runner.run(check())


def test_every_scene_of_the_rehearsal_runs_to_its_answer(runner: asyncio.Runner) -> None:
    async def check() -> None:
        async with Sandbox(servers=1, max_runs=8) as sandbox:
            for script, inputs, replies in REHEARSAL:
                left = list(replies)

                async def reply(body: JSON, left: list[JSON] = left) -> JSON:
                    return left.pop(0)

                def program(code: str, stdin: str, output: str, left: list[JSON] = left) -> None:
                    left.pop(0)  # programs are run by the sandbox itself

                result = await sandbox.run(
                    script, inputs=inputs, limits=Limits(cpu_seconds=5), on_ask=reply, on_program=program
                )
                assert result.verdict is Verdict.OK and left == []
                assert isinstance(result.answer, dict) and result.answer["value"] == "42"

    runner.run(check())
