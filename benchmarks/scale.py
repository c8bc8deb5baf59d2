"""Thousands of executions in flight, without a model: python -m benchmarks.scale [--in-flight 4000] [--json].

The rollout, the sandbox and the graders are the real ones. The policy waits as long as the engines of a cluster would:
the length of each reply is drawn by its seed, and a token takes what `metaagentx plan` computes for a decode step of
Qwen3-8B with the replies that are then under way, shared among the GPUs. A script has three solvers and a judge; half
of the tasks are math, whose answers a worker compares, and half are programs with four tests. Half as many executions
again as may be in flight are run, so that the limit is reached.

- peak_runs, peak_waiting_calls: the most processes of scripts, and calls that waited for the model, at once;
- memory_mb, own_mb: the most memory of this process and all below it, and of this process alone, against before;
- lag_ms: how much later than asked the event loop woke up a task that sleeps for 50 ms;
- cpu_ms_per_execution: CPU time of this process and all below it;
- loop_share: the share of the time in which this process used a CPU, without the policy and the measurement of memory;
  loop_ms_per_waiting_s: the same for each second of an execution, without what its calls take in benchmarks.rollout;
- door_ms: one ask and its reply, one after the other, of one script.
"""

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from benchmarks.rollout import SCRIPT, SOLVERS, memory_bytes
from benchmarks.sandbox import percentile
from metaagentx.backends.cluster_plan import MAX_SEQUENCES, constant, decode_step_seconds
from metaagentx.backends.model_shape import KNOWN_SHAPES
from metaagentx.backends.scripted import ScriptedPolicy
from metaagentx.config import RolloutConfig
from metaagentx.policy import Completion, SamplingParams
from metaagentx.rewards.graders import Graders
from metaagentx.rollout.sampling import RoleSampler
from metaagentx.rollout.tree import Resources, RolloutOptions, rollout_batch
from metaagentx.sandbox import JSON, Limits, Sandbox
from metaagentx.types import CodeTests, FunctionTest, MathGold, Role, Task

SHAPE = KNOWN_SHAPES["Qwen3-8B"]
REPLIES_PER_GPU = 96
"""As many GPUs are assumed as give each of them so many replies at once."""
SIGMA, LONGEST = 0.6, 8192
DESIGNS, EXECUTIONS = 4, 4
TESTS = CodeTests(tuple(FunctionTest((n,), 2 * n) for n in range(4)), entry_point="double")
PROGRAM = "def double(n):\n    return {how}"


def reply(text: str) -> Completion:
    """The completion with a text."""
    tokens = (*text.encode(), 256)
    return Completion(tokens, (0.0,) * len(tokens), "stop")


DESIGN = reply(f"<code>\n{SCRIPT}\n</code>")
MATH = [reply(rf"<delivery>\boxed{{{answer}}}</delivery>") for answer in ("0.5", "2", "3", "4")]
CODE = [
    reply(f"<delivery><solution>\n{PROGRAM.format(how=how)}\n</solution></delivery>")
    for how in ("2 * n", "1", "2", "3")
]


class ClusterPolicy(ScriptedPolicy):
    """Replies as late as an engine on this many GPUs; the judge is right and the solvers are not."""

    def __init__(self, gpus: float, speed: float) -> None:
        super().__init__([])
        self._gpus, self._speed = gpus, speed
        self.seconds = 0.0
        self.waiting = self.calls = 0

    async def sample(self, prompt: Sequence[int], params: SamplingParams) -> Completion:
        """Return the reply that the place of the call wants, after the seconds of a reply of random length."""
        started = time.process_time()
        text = bytes(token & 255 for token in prompt)
        replies = CODE if b"Write double" in text else MATH
        solver = next((n for n, name in enumerate(SOLVERS, 1) if b"as solver " + name in text), 0)
        completion = DESIGN if b"You design" in text else replies[solver]
        self.waiting += 1
        self.calls += 1
        seconds = self._seconds(params.seed or 0) / self._speed
        self.seconds += time.process_time() - started
        try:
            await asyncio.sleep(seconds)
        finally:
            self.waiting -= 1
        return completion

    def _seconds(self, seed: int) -> float:
        mean = constant("executor_reply_tokens")
        tokens = min(LONGEST, mean * random.Random(seed).lognormvariate(-(SIGMA**2) / 2, SIGMA))
        load = max(1.0, self.waiting / self._gpus)
        at_once = min(load, MAX_SEQUENCES)
        context = constant("prompt_tokens") + mean / 2
        return tokens * decode_step_seconds(SHAPE, at_once, context) * load / at_once


def tasks(count: int) -> list[Task]:
    """Half math, half code."""
    math, code = MathGold((r"\frac{1}{2}",)), TESTS
    return [
        Task(f"c{n}", "code", f"Write double, variant {n}.", code, "benchmark", "train")
        if n % 2
        else Task(f"m{n}", "math", f"What is {n + 1} / {2 * n + 2}?", math, "benchmark", "train")
        for n in range(count)
    ]


class Monitor:
    """Watches the event loop and the memory while the rollout runs."""

    def __init__(self, policy: ClusterPolicy, sandbox: Sandbox) -> None:
        self._policy, self._sandbox = policy, sandbox
        self._before, self._own_before = memory_bytes(os.getpid()), _own_bytes()
        self.lags: list[float] = []
        self.seconds = 0.0
        self.peak_runs = self.peak_waiting_calls = self.memory = self.own = 0

    async def watch_loop(self) -> None:
        """Record how late the loop is, twenty times a second."""
        while True:
            started = time.perf_counter()
            await asyncio.sleep(0.05)
            self.lags.append(1000 * (time.perf_counter() - started - 0.05))
            self.peak_waiting_calls = max(self.peak_waiting_calls, self._policy.waiting)

    async def watch_memory(self) -> None:
        """Measure the memory whenever there are a tenth more runs than at the last time."""
        measured = 0
        while True:
            await asyncio.sleep(0.5)
            runs = len(self._sandbox.process_ids)
            self.peak_runs = max(self.peak_runs, runs)
            self.own = max(self.own, _own_bytes() - self._own_before)
            if runs > 1.1 * measured:
                measured = runs
                used, seconds = await asyncio.to_thread(_measure_memory)  # in the kernel, nearly all of it
                self.memory = max(self.memory, used - self._before)
                self.seconds += seconds


async def measure_door(sandbox: Sandbox, count: int = 200) -> float:
    """Milliseconds of an ask and its reply: the median of the times between two asks."""
    times: list[float] = []

    async def handler(body: JSON) -> JSON:
        times.append(time.perf_counter())
        return body

    code = f"import door\nx = [door.ask(n) for n in range({count})]\ndoor.answer(x[-1])"
    result = await sandbox.run(code, on_ask=handler, limits=Limits(asks=count))
    assert result.answer == count - 1, result
    return 1000 * statistics.median(later - earlier for earlier, later in pairwise(times))


async def simulate(in_flight: int, speed: float = 1.0) -> dict[str, float]:
    """Return every figure of one rollout. Replies come `speed` times as fast as a cluster's."""
    at_once = in_flight * constant("calls_per_execution") / constant("turns_per_execution")
    policy = ClusterPolicy(max(1.0, at_once / REPLIES_PER_GPU), speed)
    count = -(-3 * in_flight // (2 * DESIGNS * EXECUTIONS))
    config = RolloutConfig(designs=DESIGNS, executions=EXECUTIONS, in_flight=in_flight, execution_seconds=1800.0)
    done = [0]
    samplers = {role: RoleSampler(role, policy, LONGEST, attempt_seconds=config.attempt_seconds) for role in Role}
    async with Sandbox(max_runs=in_flight) as sandbox, Graders() as graders:
        door = min([await measure_door(sandbox) for _ in range(3)])
        await graders.start()
        monitor = Monitor(policy, sandbox)
        watching = [asyncio.create_task(monitor.watch_loop()), asyncio.create_task(monitor.watch_memory())]
        limit = asyncio.Semaphore(in_flight)
        shared = Resources(samplers, sandbox, graders, limit, lambda _: done.__setitem__(0, done[0] + 1))
        started, own, total = time.perf_counter(), time.process_time(), cpu_seconds(os.getpid())
        rollouts = await rollout_batch(tasks(count), shared, RolloutOptions(config), ("scale",))
        seconds, own = time.perf_counter() - started, time.process_time() - own
        total = cpu_seconds(os.getpid()) - total
        for task in watching:
            task.cancel()
    loop = own - policy.seconds - monitor.seconds
    executions = [execution for tree in rollouts for design in tree.designs for execution in design.executions]
    waited = sum(execution.seconds for execution in executions)
    faults = [execution.fault for execution in executions if execution.fault is not None]
    faults += [design.fault for tree in rollouts for design in tree.designs if design.fault is not None]
    for (kind, message), number in Counter((fault.kind, fault.message) for fault in faults).most_common(5):
        print(f"{number} x {kind}: {message}", file=sys.stderr)
    solved = sum(1 for execution in executions if execution.reward is not None and execution.reward.solved)
    return {
        "in_flight": in_flight,
        "executions": len(executions),
        "failed": len(faults),
        "unsolved": len(executions) - solved,
        "seconds": seconds,
        "executions_per_s": len(executions) / seconds,
        "calls_per_s": policy.calls / seconds,
        "mean_execution_s": waited / len(executions),
        "peak_runs": monitor.peak_runs,
        "peak_waiting_calls": monitor.peak_waiting_calls,
        "memory_mb": monitor.memory / 1e6,
        "own_mb": monitor.own / 1e6,
        "mb_per_run": monitor.memory / 1e6 / max(1, monitor.peak_runs),
        "lag_ms_p50": statistics.median(monitor.lags),
        "lag_ms_p99": percentile(monitor.lags, 0.99),
        "lag_ms_max": max(monitor.lags),
        "cpu_ms_per_execution": 1000 * total / len(executions),
        "loop_share": loop / seconds,
        "loop_ms_per_waiting_s": max(0.0, 1000 * loop - policy.calls * constant("loop_ms_per_call")) / waited,
        "door_ms": door,
    }


def cpu_seconds(pid: int) -> float:
    """CPU time of a process, of all below it, and of those below it that have ended and were waited for."""
    process = Path(f"/proc/{pid}")
    try:
        times = (process / "stat").read_text().rpartition(")")[2].split()[11:15]
        below = [
            child for thread in (process / "task").iterdir() for child in (thread / "children").read_text().split()
        ]
    except (FileNotFoundError, ProcessLookupError):
        return 0.0  # it ended while we looked
    return sum(map(int, times)) / os.sysconf("SC_CLK_TCK") + sum(cpu_seconds(int(child)) for child in below)


def _measure_memory() -> tuple[int, float]:
    """Return the memory of this process and all below it, and the CPU time that it took to find out."""
    started = time.thread_time()
    return memory_bytes(os.getpid()), time.thread_time() - started


def _own_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    """Simulate, and print the figures; exit code 1 if an execution failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--in-flight", type=int, default=4000, help="executions in flight")
    parser.add_argument("--speed", type=float, default=1.0, help="how much faster than a cluster replies come")
    parser.add_argument("--json", action="store_true", help="one JSON line")
    options = parser.parse_args()
    figures = asyncio.run(simulate(options.in_flight, options.speed))
    if options.json:
        print(json.dumps({name: round(value, 3) for name, value in figures.items()}))
    else:
        for name, value in figures.items():
            print(f"{name:22} {value:12,.3f}")
    sys.exit(1 if figures["failed"] or figures["unsolved"] else 0)


if __name__ == "__main__":
    main()
