"""Processor time of an execution, by process: python -m benchmarks.executions [--json].

The rollout of the quickstart with its programmed teacher in place of the model: its tasks, designs, tools and graders,
96 executions in flight. A busy neighbor changes the wall-clock time threefold and these figures by a few percent, so
two versions are compared by them, in alternation. Each is in ms of processor time for an execution, the best of 5
rounds of 96 designs x 3 executions:
- host_ms: this process, which also plays the teacher (teacher_ms of it);
- servers_ms: the fork servers of the sandbox; runs_ms: their children;
- graders_ms: the graders' fork servers and workers;
- kernel_ms: kernel threads of the whole machine, such as those that take namespaces down;
- total_ms: all but kernel_ms.
"""

import asyncio
import os
import sys
import time
from pathlib import Path

from benchmarks.report import report
from metaagentx.coldstart.programmed_teacher import ProgrammedTeacher
from metaagentx.config import RolloutConfig, load_recipe
from metaagentx.policy import ChatReply, Messages, SamplingParams
from metaagentx.rewards.graders import Graders
from metaagentx.rollout.sampling import RoleSampler
from metaagentx.rollout.tree import Resources, RolloutOptions, rollout_batch
from metaagentx.sandbox import Sandbox
from metaagentx.tasks import Mixture
from metaagentx.types import Role

ROUNDS = 5
TASKS, DESIGNS, EXECUTIONS = 24, 4, 3
IN_FLIGHT = 96
RECIPE = Path(__file__).parents[1] / "recipes/tiny.toml"
_TICKS = os.sysconf("SC_CLK_TCK")


class Teacher(ProgrammedTeacher):
    """The programmed teacher; knows how long it took."""

    seconds = 0.0

    async def chat(self, messages: Messages, params: SamplingParams) -> ChatReply:
        """Reply and count the time."""
        started = time.thread_time()
        reply = await super().chat(messages, params)
        self.seconds += time.thread_time() - started
        return reply


def own_and_reaped(pid: int) -> tuple[float, float]:
    """Seconds that a process has used, and those that its children had used when it reaped them."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0, 0.0
    user, system, reaped_user, reaped_system = (int(field) / _TICKS for field in fields[11:15])
    return user + system, reaped_user + reaped_system


def kernel_seconds() -> float:
    """Seconds that all kernel threads have used."""
    total = 0.0
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
            except (FileNotFoundError, ProcessLookupError):
                continue
            total += own_and_reaped(int(entry.name))[0] if parent == "2" else 0.0
    return total


class Meter:
    """Seconds of processor time used so far, by part."""

    def __init__(self, sandbox: Sandbox, graders: Graders, teacher: Teacher) -> None:
        self._sandbox, self._graders, self._teacher = sandbox, graders, teacher

    def read(self) -> dict[str, float]:
        """Return the totals."""
        in_sandbox = [own_and_reaped(pid) for pid in self._sandbox.process_ids]
        servers = [own_and_reaped(server.process_ids[0]) for server in self._sandbox._servers]
        graders = [own_and_reaped(pid) for kind in ("math", "gym") for pid in self._graders._jailed[kind].process_ids]
        server = sum(own for own, _ in servers)
        return {
            "host_ms": time.process_time(),
            "teacher_ms": self._teacher.seconds,
            "servers_ms": server,
            "runs_ms": sum(own + reaped for own, reaped in in_sandbox) - server,
            "graders_ms": sum(own + reaped for own, reaped in graders),
            "kernel_ms": kernel_seconds(),
        }


async def measure() -> dict[str, float]:
    """Every figure, best of the rounds."""
    config = load_recipe(RECIPE, []).config
    mixture = Mixture(config.tasks.train, config.seed)
    options = RolloutOptions(
        RolloutConfig(designs=DESIGNS, executions=EXECUTIONS, calls=config.rollout.calls), config.reward
    )
    teacher = Teacher()
    rounds: list[dict[str, float]] = []
    async with Sandbox(max_runs=IN_FLIGHT) as sandbox, Graders() as graders:
        samplers = {role: RoleSampler(role, teacher, 256) for role in Role}
        resources = Resources(samplers, sandbox, graders, asyncio.Semaphore(IN_FLIGHT))
        meter = Meter(sandbox, graders, teacher)
        for number in range(ROUNDS + 1):
            tasks = mixture.batch(number, TASKS)
            before, started = meter.read(), time.perf_counter()
            trees = await rollout_batch(tasks, resources, options, ("speed", number))
            seconds, after = time.perf_counter() - started, meter.read()
            count = sum(len(design.executions) for tree in trees for design in tree.designs)
            assert count == TASKS * DESIGNS * EXECUTIONS, count
            # A kernel thread that ended meanwhile takes its time with it.
            figures = {name: max(0.0, 1000 * (after[name] - before[name]) / count) for name in before}
            total = sum(figures[name] for name in ("host_ms", "servers_ms", "runs_ms", "graders_ms"))
            rounds.append({**figures, "total_ms": total, "executions_per_s": count / seconds})
    timed = rounds[1:]
    return {key: (max if key.endswith("_per_s") else min)(one[key] for one in timed) for key in timed[0]}


if __name__ == "__main__":
    print("measuring executions ...", file=sys.stderr)
    report(asyncio.run(measure()), {}, __doc__)
