"""Graders as a user may write them, good and bad, for test_workers."""

import ctypes
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any


def half(answer: str, data: Any) -> float:
    return 0.5 if answer == data["half"] else float(answer == data["full"])


def yes(answer: str, data: Any) -> bool:
    return answer == "yes"


def noisy(answer: str, data: Any) -> bool:
    print("noise " * 10_000)
    os.write(1, b"\x00\x00\x00\x05noise")
    os.write(2, b"more noise")
    sys.stderr.flush()
    return True


def act(answer: str, data: Any) -> float:
    """Do to the worker whatever the answer says."""
    if answer == "burn":
        while True:
            pass
    if answer == "sleep":
        time.sleep(60)
    if answer == "nap":
        time.sleep(0.5)
    if answer == "memory":
        return float(len(bytearray(1 << 40)) > 0)
    if answer == "recursion":
        return act(answer, data)
    if answer == "segfault":
        ctypes.string_at(0)
    if answer == "exit":
        os._exit(3)
    if answer == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if answer == "killed once" and not Path(data).exists():
        Path(data).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if answer == "segfault once" and not Path(data).exists():
        Path(data).touch()
        ctypes.string_at(0)
    return 1.0


def raises(answer: str, data: Any) -> float:
    raise KeyError("no such answer key")


def too_much(answer: str, data: Any) -> float:
    return 7.0


not_a_function = 3
