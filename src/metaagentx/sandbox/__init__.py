"""Runs untrusted Python (the Designer's scripts and solution programs) thousands of times per step, without privileges.

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

For many runs at once, `asyncio.gather` many `run`: the sandbox controls admission. `result.answer` is whatever the code
passed and as untrusted as the code. The host itself knows the verdict, the CPU time, and which asks it answered.

Protected against, in tiers T1 and T2 (the attack list in tests/sandbox is the contract): access to files and
environment of the host and of other runs, to the network, to processes and signals, to kernel interfaces beyond a short
list of system calls; exhaustion of CPU, memory, threads, descriptors, output and messages; forged or malformed
messages; processes or files left behind; verdicts that a run would prefer to its own.

Not protected against: bugs of the kernel behind the allowed calls (for that, use a virtual machine); side channels such
as timing and caches; without cgroups, memory use of all runs together beyond admission control and a watchdog; in T2
code can see which paths exist (stat) but not their content, and in T2 and T3 where the interpreter and the project are;
CPU time taken from other processes within the limits.

Code cannot write files, start processes, open sockets or use asyncio. Standard-library modules that need further shared
libraries (ssl, sqlite3, lzma) are missing. In T2, when root runs an interpreter below a directory that only root may
enter, only preloaded modules can be imported. Needs Linux 5.9 or newer on x86_64 or aarch64.
"""

import sys

if sys.platform == "win32":
    raise ImportError("the sandbox works on Linux only: run MetaAgent-X in WSL or in a Linux container")

from .frames import JSON
from .profile import Profile
from .sandbox import Sandbox
from .session import SandboxSession, SessionEnded
from .types import BudgetExceeded, Infra, Limits, ProtocolViolation, Result, SandboxUnavailable, Tier, Verdict

__all__ = [
    "JSON",
    "BudgetExceeded",
    "Infra",
    "Limits",
    "Profile",
    "ProtocolViolation",
    "Result",
    "Sandbox",
    "SandboxSession",
    "SandboxUnavailable",
    "SessionEnded",
    "Tier",
    "Verdict",
]
