"""The sandbox against its demands: python -m benchmarks.sandbox [--json].

Absolute times move threefold with a busy neighbour, so every figure is the best of several rounds, and the ratios
against a plain interpreter and a bare fork, taken in the same rounds, are what carries over to another machine.
"""

import asyncio
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

from benchmarks.report import Demand, report
from metaagentx.sandbox import JSON, Limits, Sandbox, Tier, Verdict, memory
from metaagentx.sandbox.jail import interpreter

TRIVIAL = "x = 1"
ROUNDS = 3


DEMANDS = {
    "run_ms_p50": Demand(5),
    "run_ms_p99": Demand(12),
    "runs_per_s": Demand(300, at_least=True),
    "warm_ms_p50": Demand(1),
    "warm_ms_p99": Demand(5),
    "concurrent_1000_s": Demand(4),
    "concurrent_mb_each": Demand(3),
    "release_s": Demand(1.5),
    "start_ms": Demand(150),
    "ratio_plain_python": Demand(0.6),
    "ratio_fork_only": Demand(1.6),
}


def percentile(values: list[float], share: float) -> float:
    """The value below which this share of the values lies."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


async def time_runs(sandbox: Sandbox, count: int, pause_seconds: float = 0.0) -> list[float]:
    """Milliseconds from code to result, one after the other."""
    times = []
    for _ in range(count):
        if pause_seconds:
            await asyncio.sleep(pause_seconds)
        started = time.perf_counter()
        result = await sandbox.run(TRIVIAL)
        times.append(1000 * (time.perf_counter() - started))
        assert result.verdict is Verdict.OK, result
    return times


def time_plain_python(count: int) -> float:
    """Milliseconds of a bare interpreter that does nothing: the median."""
    times = []
    for _ in range(count):
        started = time.perf_counter()
        subprocess.run([str(interpreter().executable), "-I", "-S", "-c", "pass"], check=True)
        times.append(1000 * (time.perf_counter() - started))
    return statistics.median(times)


async def measure_latency() -> dict[str, float]:
    """Sequential runs, bare fork and plain Python in the same rounds."""
    rounds: list[dict[str, float]] = []
    for _ in range(ROUNDS):
        async with Sandbox(tier=Tier.T1, warm=0, max_runs=64) as sandbox:
            await time_runs(sandbox, 20)
            run = await time_runs(sandbox, 200)
        async with Sandbox(tier=Tier.NONE, unisolated=True, warm=0, max_runs=64) as bare:
            await time_runs(bare, 20)
            fork = await time_runs(bare, 100)
        async with Sandbox(tier=Tier.T1, warm=4, max_runs=64) as pool:
            await time_runs(pool, 20, 0.02)
            warm = await time_runs(pool, 200, 0.02)
        rounds.append(
            {
                "run_ms_p50": statistics.median(run),
                "run_ms_p99": percentile(run, 0.99),
                "warm_ms_p50": statistics.median(warm),
                "warm_ms_p99": percentile(warm, 0.99),
                "fork_only_ms": statistics.median(fork),
                "plain_python_ms": time_plain_python(30),
            }
        )
    best = {key: min(one[key] for one in rounds) for key in rounds[0]}
    best["ratio_plain_python"] = min(one["run_ms_p50"] / one["plain_python_ms"] for one in rounds)
    best["ratio_fork_only"] = min(one["run_ms_p50"] / one["fork_only_ms"] for one in rounds)
    return best


async def measure_throughput(count: int = 1000) -> float:
    """Runs per second with as many at once as there are cores to feed."""
    best = 0.0
    async with Sandbox(tier=Tier.T1, servers=2, warm=0, max_runs=64) as sandbox:
        for _ in range(ROUNDS):
            started = time.perf_counter()
            await asyncio.gather(*(sandbox.run(TRIVIAL) for _ in range(count)))
            best = max(best, count / (time.perf_counter() - started))
    return best


async def measure_crowd(count: int = 1000) -> dict[str, float]:
    """So many runs, all waiting for a reply at once: time to get there, memory each, time to let all of them go."""
    async with Sandbox(tier=Tier.T1, servers=2, warm=0, max_runs=count) as sandbox:
        waiting, everybody, go = 0, asyncio.Event(), asyncio.Event()

        async def handler(body: JSON) -> JSON:
            nonlocal waiting
            waiting += 1
            if waiting == count:
                everybody.set()
            await go.wait()
            return body

        before = memory.available_bytes()
        started = time.perf_counter()
        code, limits = "import door; door.answer(door.ask(1))", Limits(wall_seconds=120)
        runs = [asyncio.create_task(sandbox.run(code, on_ask=handler, limits=limits)) for _ in range(count)]
        await asyncio.wait_for(everybody.wait(), 300)
        reached = time.perf_counter() - started
        used = before - memory.available_bytes()
        started = time.perf_counter()
        go.set()
        results = await asyncio.gather(*runs)
        released = time.perf_counter() - started
        assert all(result.answer == 1 for result in results)
    return {"reached": reached, "released": released, "mb_each": used / count / 1e6}


async def measure_start() -> float:
    """Milliseconds until a sandbox with one fork server serves, the choice of the tier being known."""
    times = []
    for _ in range(5):
        started = time.perf_counter()
        async with Sandbox(tier=Tier.T1, servers=1, warm=0, max_runs=8):
            times.append(1000 * (time.perf_counter() - started))
    return min(times)


async def measure(progress: Callable[[str], None]) -> dict[str, float]:
    """Every figure, best of the rounds."""
    progress("latency")
    figures = await measure_latency()
    progress("throughput")
    figures["runs_per_s"] = await measure_throughput()
    progress("a thousand at once")
    crowds = [await measure_crowd() for _ in range(2)]
    figures["concurrent_1000_s"] = min(crowd["reached"] for crowd in crowds)
    figures["release_s"] = min(crowd["released"] for crowd in crowds)
    figures["concurrent_mb_each"] = min(crowd["mb_each"] for crowd in crowds)
    figures["start_ms"] = await measure_start()
    progress("two thousand at once")
    figures["concurrent_2000_s"] = (await measure_crowd(2000))["reached"]
    return figures


if __name__ == "__main__":
    figures = asyncio.run(measure(lambda what: print(f"measuring {what} ...", file=sys.stderr)))
    report(figures, DEMANDS, __doc__)
