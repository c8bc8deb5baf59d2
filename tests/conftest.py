"""One event loop for the whole session, so that tests can share a sandbox; one sandbox per tier; one
process that commands are forked from."""

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack

import pytest

from metaagentx.rewards.graders import Graders
from metaagentx.sandbox import Sandbox, Tier
from tests.trainers import Mother

# A shell's background job ignores Ctrl-C and hands that on. Tests send it to commands they start.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="session")
def sandboxes(runner: asyncio.Runner) -> Iterator[Callable[[Tier], Sandbox]]:
    """A sandbox of each tier, started when first asked for."""
    started: dict[Tier, Sandbox] = {}
    stack = AsyncExitStack()

    def get(tier: Tier) -> Sandbox:
        if tier not in started:
            sandbox = Sandbox(tier=tier, max_runs=256, unisolated=tier is Tier.NONE)
            started[tier] = runner.run(stack.enter_async_context(sandbox))
        return started[tier]

    yield get
    runner.run(stack.aclose())


@pytest.fixture
def sandbox(sandboxes: Callable[[Tier], Sandbox]) -> Sandbox:
    return sandboxes(Tier.T1)


@pytest.fixture(scope="session")
def graders(runner: asyncio.Runner) -> Iterator[Graders]:
    """One set of graders, whose workers start with the first answer."""
    graders = Graders()
    yield runner.run(graders.__aenter__())
    runner.run(graders.__aexit__(None, None, None))


@pytest.fixture(scope="session")
def mother(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mother]:
    """Starts commands quickly, one at a time."""
    mother = Mother(tmp_path_factory.mktemp("mother") / "command")
    yield mother
    mother.close()
