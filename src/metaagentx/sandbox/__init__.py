"""Runs untrusted Python: the Designer's scripts and solution programs, thousands of times a step, and gives it nothing.

    import asyncio
    from metaagentx.sandbox import Limits, Sandbox

    async def answer(question):
        return f"you asked {question!r}"

    async def main():
        async with Sandbox() as sandbox:
            result = await sandbox.run(
                "import door; print(input()); door.answer(door.ask('why?'))",
                stdin="hello\\n",
                limits=Limits(cpu_seconds=1, wall_seconds=5),
                on_ask=answer,
            )
        print(result.verdict, result.stdout, result.answer)

    asyncio.run(main())

Many runs at once are `asyncio.gather` of many `run`; admission is the sandbox's business. `result.answer` is whatever
the code handed over and as untrusted as the code; what the host knows is the verdict, the processor time, and which
asks it answered.

Covered, in tiers T1 and T2 (the attack list in tests/sandbox is the contract): files and environment of the host and
of other runs, network, processes and signals, kernel interfaces beyond a short list of system calls, exhaustion of
processor, memory, threads, descriptors, output and messages, forged or malformed messages, processes or files left
behind, verdicts that a run would like better than its own.

Not covered: bugs of the kernel behind the calls that are allowed (for that, put the whole machine into a virtual
one); side channels such as timing and caches; the sum of memory over all runs, which admission control and a watchdog
bound but no cgroup caps; in T2 that code can see which paths exist (stat), not what is in them; CPU time stolen from
neighbours within the limits. Code has no place to write files, no processes of its own, no sockets, no asyncio.
Standard-library modules that need further shared libraries (ssl, sqlite3, lzma) are not there. In T2, when root runs
an interpreter below a directory that only root may enter, only preloaded modules can be imported. Linux 5.9 or newer,
x86_64 or aarch64.
"""

import sys

if sys.platform == "win32":
    raise ImportError("the sandbox isolates by Linux only: run MetaAgent-X in WSL or in a Linux container")

from .frames import JSON
from .host import Sandbox
from .types import BudgetExceeded, Infra, Limits, ProtocolViolation, Result, SandboxUnavailable, Tier, Verdict

__all__ = [
    "JSON",
    "BudgetExceeded",
    "Infra",
    "Limits",
    "ProtocolViolation",
    "Result",
    "Sandbox",
    "SandboxUnavailable",
    "Tier",
    "Verdict",
]
