"""The rollout end to end, with a policy that costs nothing: python -m benchmarks.rollout [--json].

A tree is a design, its executions in the sandbox, four calls in each (three solvers that vote without a majority, then
a judge), and a math answer graded; 128 executions are in flight.
- executions_per_s: the best of 3 rounds of 512;
- host_ms_per_call: processor time of this process over a round by its calls, less what the policy itself took;
- mb_per_waiting: memory of this process and all below it while 128 executions wait for the model, against before.
"""

import asyncio
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.report import Demand, report
from metaagentx.backends.scripted import ScriptedPolicy
from metaagentx.config import RolloutConfig
from metaagentx.policy import Completion, SamplingParams
from metaagentx.rewards.graders import Graders
from metaagentx.rollout.sampling import RoleSampler
from metaagentx.rollout.tree import Resources, RolloutOptions, rollout_batch
from metaagentx.sandbox import Sandbox
from metaagentx.types import MathGold, Role, Rollout, Task

ROUNDS = 3
IN_FLIGHT = 128
TASKS, DESIGNS, EXECUTIONS, CALLS = 32, 4, 4, 4

DEMANDS = {
    "executions_per_s": Demand(100, at_least=True),
    "host_ms_per_call": Demand(1),
    "mb_per_waiting": Demand(4),
}

SOLVERS = (b"One", b"Two", b"Three")
SCRIPT = """
from workflow import AgentNode, Workflow
from workflow.nodes import EnsembleNode

solvers = [AgentNode(name=name, system_prompt=f"Solve it as solver {name}.") for name in ("One", "Two", "Three")]
judge = AgentNode(name="Judge", system_prompt="Decide who is right.")
workflow = Workflow(name="vote")
workflow.add_node(EnsembleNode(name="vote", agents=solvers, strategy="majority_vote", consensus_agent=judge))
result = workflow.run(question)
print(result.content)
"""


class FreePolicy(ScriptedPolicy):
    """Replies at once, by the place of the call; knows how long it took, and can hold all replies back."""

    def __init__(self) -> None:
        super().__init__([])
        self.seconds = 0.0
        self.waiting = 0
        self.open = asyncio.Event()
        self.open.set()
        self._replies = {
            text: Completion(tokens := (*text.encode(), 256), (0.0,) * len(tokens), "stop")
            for text in (f"<code>\n{SCRIPT}\n</code>", *(rf"<delivery>\boxed{{{n}}}</delivery>" for n in range(4)))
        }

    async def sample(self, prompt: Sequence[int], params: SamplingParams) -> Completion:
        """The script for the Designer, three different answers for the solvers, the right one for the judge."""
        started = time.process_time()
        design, *answers = self._replies.values()
        text = bytes(token & 255 for token in prompt)
        designer = b"You design" in text
        answer = answers[next((n for n, name in enumerate(SOLVERS, 1) if b"as solver " + name in text), 0)]
        self.seconds += time.process_time() - started
        if not designer and not self.open.is_set():
            self.waiting += 1
            await self.open.wait()
        return design if designer else answer


def resources(policy: FreePolicy, sandbox: Sandbox, graders: Graders) -> Resources:
    """One policy in both roles."""
    samplers = {role: RoleSampler(role, policy, 2048) for role in Role}
    return Resources(samplers, sandbox, graders, asyncio.Semaphore(IN_FLIGHT))


def tasks(count: int) -> list[Task]:
    """Questions that all have the same answer."""
    gold = MathGold(("0",))
    return [Task(f"t{n}", "math", f"What is {n} - {n}?", gold, "benchmark", "train") for n in range(count)]


def calls_of(rollouts: list[Rollout]) -> int:
    """How many calls there were, designs included, after a look that all is as it should be."""
    executions = [execution for tree in rollouts for design in tree.designs for execution in design.executions]
    assert all(execution.fault is None and execution.reward for execution in executions), executions[0]
    return sum(1 for tree in rollouts for _ in tree.designs) + sum(len(execution.calls) for execution in executions)


async def measure_speed(shared: Resources, policy: FreePolicy) -> dict[str, float]:
    """One round of whole trees."""
    options = RolloutOptions(RolloutConfig(designs=DESIGNS, executions=EXECUTIONS))
    policy.seconds, cpu, started = 0.0, time.process_time(), time.perf_counter()
    rollouts = await rollout_batch(tasks(TASKS), shared, options, ("speed",))
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    calls = calls_of(rollouts)
    return {
        "executions_per_s": TASKS * DESIGNS * EXECUTIONS / seconds,
        "host_ms_per_call": 1000 * (cpu - policy.seconds) / calls,
        "calls_per_s": calls / seconds,
    }


async def measure_waiting(shared: Resources, policy: FreePolicy) -> float:
    """Megabytes for each execution that waits for the model."""
    before = memory_bytes(os.getpid())
    policy.open.clear()
    policy.waiting = 0
    options = RolloutOptions(RolloutConfig(designs=DESIGNS, executions=EXECUTIONS))
    growing = asyncio.create_task(
        rollout_batch(tasks(IN_FLIGHT // DESIGNS // EXECUTIONS), shared, options, ("waiting",))
    )
    while policy.waiting < 3 * IN_FLIGHT:
        await asyncio.sleep(0.05)
    used = memory_bytes(os.getpid()) - before
    policy.open.set()
    calls_of(await growing)
    return used / IN_FLIGHT / 1e6


def memory_bytes(pid: int) -> int:
    """What a process and all below it have in memory; pages that several share count once in all."""
    process = Path(f"/proc/{pid}")
    try:
        lines = (process / "smaps_rollup").read_text().splitlines()
        below = [
            child for thread in (process / "task").iterdir() for child in (thread / "children").read_text().split()
        ]
    except (FileNotFoundError, ProcessLookupError):
        return 0  # it ended while we looked
    own = next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)
    return 1024 * own + sum(memory_bytes(int(child)) for child in below)


async def measure() -> dict[str, float]:
    """Every figure, best of the rounds."""
    policy = FreePolicy()
    async with Sandbox(max_runs=IN_FLIGHT) as sandbox, Graders() as graders:
        shared = resources(policy, sandbox, graders)
        await measure_speed(shared, policy)
        rounds = [await measure_speed(shared, policy) for _ in range(ROUNDS)]
        waiting = min([await measure_waiting(shared, policy) for _ in range(ROUNDS)])
    best = {key: (max if key.endswith("_per_s") else min)(one[key] for one in rounds) for key in rounds[0]}
    return {**best, "mb_per_waiting": waiting}


if __name__ == "__main__":
    print("measuring trees ...", file=sys.stderr)
    report(asyncio.run(measure()), DEMANDS, __doc__)
