"""Measures free memory, detects exhausted memory, and turns errors of libraries into one line."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from ..memory_budget import available_host_bytes

_OUT_OF_MEMORY_TEXTS = ("allocate memory", "bad_alloc", "CUBLAS_STATUS_ALLOC_FAILED")


def available_bytes(device: torch.device) -> int:
    """Return how much more memory this process can take on a device."""
    if device.type != "cuda":
        return available_host_bytes()
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an allocation failed, on a GPU or on a CPU, where torch has no exception type for it."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return any(text in str(error) for text in _OUT_OF_MEMORY_TEXTS)


@contextmanager
def translate_out_of_memory(kind: type[Exception], message: str) -> Iterator[None]:
    """Raise an error of this kind where memory runs out inside. Other errors pass."""
    try:
        yield
    except (RuntimeError, MemoryError, OSError) as error:
        if not is_out_of_memory(error):
            raise
        raise kind(message) from error


def one_line(error: BaseException) -> str:
    """Return the whole message of an error on one line."""
    return " ".join(str(error).split()) or type(error).__name__


def raised_at(error: BaseException) -> str:
    """Return where an error was raised: the file's name and the line."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}" if trace is not None else "unknown"
