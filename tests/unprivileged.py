"""Calls functions as an ordinary user, whom permissions stop: root passes all of them.

The interpreter may lie in a directory that only root may enter, so no new one is started: a fork gives up its rights.
"""

import os
import shutil
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from metaagentx.errors import MetaAgentXError

NOBODY = 65534


@contextmanager
def public_directory() -> Iterator[Path]:
    """A directory that anyone may enter, which pytest's own are not."""
    directory = Path(tempfile.mkdtemp(prefix="metaagentx-"))
    directory.chmod(0o755)
    try:
        yield directory
    finally:
        shutil.rmtree(directory)


def as_nobody(function: Callable[[], object]) -> str:
    """What a function says to an ordinary user: the line of its MetaAgentXError, its result, or a traceback."""
    if os.getuid() != 0:
        pytest.skip("only root can become another user")
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            text = str(function())
        except MetaAgentXError as error:
            text = f"refused: {error}"
        except BaseException:  # noqa: BLE001 - it is told, and the child ends here
            text = traceback.format_exc()
        os.write(writing, text.encode()[:60_000])
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as told:
        text = told.read().decode()
    os.waitpid(child, 0)
    return text
