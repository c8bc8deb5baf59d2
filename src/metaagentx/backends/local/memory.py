"""Memory that runs out: how it is noticed, and what is said instead of what a library says."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

_SIGNS = ("allocate memory", "bad_alloc", "CUBLAS_STATUS_ALLOC_FAILED")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed, on a GPU or on a CPU, where torch has no type of its own for it."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return any(sign in str(error) for sign in _SIGNS)


@contextmanager
def out_of_memory_is(kind: type[Exception], line: str) -> Iterator[None]:
    """Memory that runs out inside is an error of this kind with this line. Other errors pass."""
    try:
        yield
    except (RuntimeError, MemoryError, OSError) as error:
        if not is_out_of_memory(error):
            raise
        raise kind(line) from error


def one_line(error: BaseException) -> str:
    """The words of an error in one line, all of them."""
    return " ".join(str(error).split()) or type(error).__name__


def origin(error: BaseException) -> str:
    """Where an error was raised: the file's name and the line."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}" if trace is not None else "unknown"
