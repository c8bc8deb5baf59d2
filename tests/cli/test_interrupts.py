"""Ctrl-C and SIGTERM, sent to real processes; tests/cli/test_train_cli.py sends them to real commands."""

import signal
import subprocess
import sys

import pytest

STUBBORN = """
import asyncio, signal, sys
from metaagentx.cli import interrupts

async def stubborn():
    print("ready", flush=True)
    while True:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            print("asked to stop", flush=True)

{before}
interrupts.install()
interrupts.run(stubborn())
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_at_once(number: int) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", STUBBORN.format(before="")], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    assert process.stdout.readline() == "asked to stop\n"
    assert process.stderr.readline() == "metaagentx: stopping; a second signal stops at once\n"
    process.send_signal(number)
    assert process.wait(30) == 130
    process.communicate()


def test_a_job_that_does_not_hear_ctrl_c_hears_sigterm() -> None:
    """A shell starts its background jobs so."""
    ignore = "signal.signal(signal.SIGINT, signal.SIG_IGN)"
    process = subprocess.Popen(
        [sys.executable, "-c", STUBBORN.format(before=ignore)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    assert process.stdout.readline() == b"asked to stop\n"
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=30)[0] == b""
    assert process.returncode == 130
