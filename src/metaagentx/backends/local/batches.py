"""A batch of requests that are decoded together, and the step that draws the next token of each.

Shapes: B rows of a step, which may be more than there are requests; the others as in `kv.py`.
"""

import shutil
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import FunctionType
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from ...errors import MetaAgentXError
from .decoder import Decoder, PlainDecoder
from .kv import Lane, Layout
from .requests import Request
from .sampler import draw

COMPILING_PAYS_AFTER_SECONDS = 30.0
"""Compiling takes 10 to 20 s and saves about half of every second after it."""


MOST_WORKERS = 4
"""Python's part of a step is for one thread at a time: more would wait for each other."""
WORTH_ALL_THREADS = 150_000_000
"""Multiplications in a step from which on sharing out each operation pays."""


SHARED_BY_ROWS = 4
SHARED_POSITIONS = 128
"""From here on reading a common beginning once for all rows pays."""


class Inputs(NamedTuple):
    """What a step starts from. Rows without a request read token 0 at position 0 over and over."""

    tokens_B: Tensor
    positions_B: Tensor
    advance_B: Tensor
    temperatures_B: Tensor
    some_greedy: bool
    shared: int
    """How many positions at the beginning are the same in all rows; 0 where that is too few to matter."""


class Steps:
    """Takes steps, compiled ones where that is wanted or pays."""

    def __init__(self, decoder: Decoder, compiled: bool | Literal["auto"], rows: int | None) -> None:
        """`rows`: how many every step has, and over their whole capacity, so that all have one shape."""
        self._decoder = decoder
        self._rows = rows
        self._compiled: Callable[..., Tensor] | None = None
        self._may_compile = compiled == "auto" and rows is None and _cannot_compile(decoder) is None
        self._seconds = 0.0
        self.fixed = rows is not None
        if compiled is True:
            if wrong := _cannot_compile(decoder):
                raise MetaAgentXError(f'model.compiled = true: {wrong}; write model.compiled = "auto" or false')
            assert isinstance(decoder, PlainDecoder)
            self._compile(decoder)

    def rows(self, requests: int) -> int:
        """How many rows a step with so many requests has."""
        if self._rows is not None:
            return self._rows
        return max(requests, 2) if self._compiled else requests  # a batch of one would be compiled on its own

    def span(self, longest: int, capacity: int) -> int:
        """How many positions it looks at."""
        return capacity if self._rows is not None else longest

    def take(self, lane: Lane, inputs: Inputs, chances_B: Tensor, span: int) -> Tensor:
        """Tokens and their log-probabilities, [2, B]."""
        if self._compiled is not None and isinstance(self._decoder, PlainDecoder) and not inputs.shared:
            mask_B_T = self._decoder.mask(inputs.positions_B, span)
            keys = [keys[: len(chances_B)] for keys in lane.keys_R_K_T_D]
            values = [values[: len(chances_B)] for values in lane.values_R_K_T_D]
            for tensor in (*keys, *values):
                torch._dynamo.mark_dynamic(tensor, (0, 2))
            torch._dynamo.mark_dynamic(mask_B_T, (0, 1))
            for tensor in (inputs.tokens_B, inputs.positions_B, inputs.advance_B, inputs.temperatures_B, chances_B):
                torch._dynamo.mark_dynamic(tensor, 0)
            return self._compiled(keys, values, inputs, mask_B_T, chances_B)
        started = time.perf_counter()
        logits_B_V = self._decoder.logits(lane, inputs.tokens_B, inputs.positions_B, span, inputs.shared)
        drawn_2_B = draw(logits_B_V, inputs.temperatures_B, chances_B, inputs.some_greedy)
        if self._may_compile:
            self._seconds += time.perf_counter() - started
        return drawn_2_B

    def compile_if_it_pays(self) -> None:
        """After so many seconds in steps that are not compiled."""
        if self._may_compile and self._seconds > COMPILING_PAYS_AFTER_SECONDS and self._compiled is None:
            assert isinstance(self._decoder, PlainDecoder)
            self._compile(self._decoder)

    def _compile(self, decoder: PlainDecoder) -> None:
        def step(
            keys: list[Tensor], values: list[Tensor], inputs: Inputs, mask_B_T: Tensor, chances_B: Tensor
        ) -> Tensor:
            logits_B_V = decoder.step(keys, values, inputs.tokens_B, inputs.positions_B, mask_B_T)
            return draw(logits_B_V, inputs.temperatures_B, chances_B, inputs.some_greedy)

        # A copy of the code, because torch counts how often one was compiled, in all engines of a process together.
        own = FunctionType(step.__code__.replace(), step.__globals__, closure=step.__closure__)
        self._compiled = torch.compile(own, fullgraph=True, dynamic=False)


def _cannot_compile(decoder: Decoder) -> str | None:
    """Why the step of this model is not compiled here, or None where it can be."""
    if not isinstance(decoder, PlainDecoder):
        return "only models that our own forward pass decodes are compiled (Qwen3 and Llama)"
    if decoder.layout.device.type == "cpu" and not shutil.which("g++"):
        return "compiling for a CPU needs a C++ compiler, and g++ was not found"
    return None


class Batch:
    """Requests, each in the row of its number."""

    def __init__(self, layout: Layout, capacity: int, rows: int) -> None:
        """`rows`: how many are expected at once."""
        self.lane = Lane(layout, capacity, rows)
        self.requests: list[Request] = []
        self._inputs: Inputs | None = None
        self._device = layout.device

    def join(self, request: Request, kv_L_2_K_T_D: Tensor | None) -> int:
        """Take a request in, with what has been read of it, and say in which row."""
        row = self.lane.add()
        if kv_L_2_K_T_D is not None:
            self.lane.write(row, kv_L_2_K_T_D)
        self.requests.append(request)
        self._inputs = None
        return row

    def read(self, request: Request, tokens: int) -> Tensor:
        """Keys and values of its first tokens."""
        return self.lane.read(self.requests.index(request), tokens)

    def leave(self, request: Request) -> Tensor:
        """Let a request go, and give what has been read of it."""
        row, last = self.requests.index(request), self.requests[-1]
        kv_L_2_K_T_D = self.lane.read(row, request.length - 1)
        self.lane.remove(row, last.length - 1)
        self.requests[row] = last
        self.requests.pop()
        self._inputs = None
        return kv_L_2_K_T_D

    def outgrown(self) -> list[Request]:
        """Those whose next token has no room."""
        return [request for request in self.requests if request.length > self.lane.capacity]

    def abandoned(self) -> list[Request]:
        """Those that nobody waits for any more."""
        return [request for request in self.requests if request.future.cancelled()]

    def step(self, steps: Steps) -> list[Request]:
        """Draw the next token of each request, and say who is finished."""
        rows = steps.rows(len(self.requests))
        if self._inputs is None or len(self._inputs.tokens_B) != rows:
            self._inputs = self._fresh_inputs(rows, 0 if steps.fixed else shared_positions(self.requests))
            self.lane.reserve(rows)
        span = steps.span(max(request.length for request in self.requests), self.lane.capacity)
        chances = [request.chance.random() for request in self.requests] + [0.5] * (rows - len(self.requests))
        chances_B = torch.tensor(chances, dtype=torch.float64, device=self._device)
        drawn_2_B = steps.take(self.lane, self._inputs, chances_B, span)
        self._inputs = self._inputs._replace(
            tokens_B=drawn_2_B[0].long() * self._inputs.advance_B,
            positions_B=self._inputs.positions_B + self._inputs.advance_B,
        )
        tokens, logprobs = drawn_2_B.tolist()
        taken = zip(self.requests, tokens, logprobs, strict=False)  # further rows belong to nobody
        return [request for request, token, logprob in taken if request.take(int(token), logprob)]

    def _fresh_inputs(self, rows: int, shared: int) -> Inputs:
        spare = rows - len(self.requests)

        def tensor(values: list[int] | list[float], filler: float) -> Tensor:
            return torch.tensor([*values, *[type(values[0])(filler)] * spare], device=self._device)

        return Inputs(
            tokens_B=tensor([request.last for request in self.requests], 0),
            positions_B=tensor([request.length - 1 for request in self.requests], 0),
            advance_B=tensor([1] * len(self.requests), 0),
            temperatures_B=tensor([float(request.params.temperature) for request in self.requests], 1.0),
            some_greedy=any(request.params.temperature == 0 for request in self.requests),
            shared=shared if rows == len(self.requests) else 0,
        )


def shared_positions(requests: Sequence[Request]) -> int:
    """How many positions that all have read hold the same, or 0 where they are few, or the requests."""
    if len(requests) < SHARED_BY_ROWS:
        return 0
    first, last = min(request.prompt for request in requests), max(request.prompt for request in requests)
    pairs = zip(first, last, strict=False)
    alike = next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(first), len(last)))
    alike = min(alike, *(len(request.prompt) - 1 for request in requests))
    return alike if alike >= SHARED_POSITIONS else 0


class Workers:
    """Threads that take a step of several batches at once, each batch in one of them.

    A step is many small operations. Sharing out each of them among torch's threads takes longer than computing it,
    the more so beside other busy processes; batches side by side have nothing to wait for but the slowest. A batch that
    is alone gets all of torch's threads if its step is large enough.
    """

    def __init__(self, decoder: Decoder, steps: Steps) -> None:
        self._steps = steps
        self._work_per_row = decoder.weights
        self._threads = torch.get_num_threads()
        self.count = min(self._threads, MOST_WORKERS) if isinstance(decoder, PlainDecoder) else 1
        if decoder.layout.device.type != "cpu":
            self.count = 1
        self._threads_each = max(1, self._threads // self.count)
        self._pool = ThreadPoolExecutor(
            max(1, self.count - 1), "steps", initializer=torch.set_num_threads, initargs=(self._threads_each,)
        )

    def step(self, batches: Sequence[Batch]) -> list[list[Request]]:
        """Draw the next token of every request, and say for each batch who is finished."""
        finished: list[list[Request]] = [[] for _ in batches]
        waiting = deque(enumerate(batches))

        def work() -> None:
            with torch.inference_mode():
                while True:
                    try:
                        number, batch = waiting.popleft()
                    except IndexError:
                        return
                    finished[number] = batch.step(self._steps)

        torch.set_num_threads(self._threads_here(batches))
        others: list[Future[None]] = []
        try:
            for _ in range(min(len(batches), self.count) - 1):
                others.append(self._pool.submit(work))
            work()
        finally:
            wait(others)  # whatever happened here: nobody touches a batch any more when this returns
            torch.set_num_threads(self._threads)
        for other in others:
            other.result()
        return finished

    def _threads_here(self, batches: Sequence[Batch]) -> int:
        """Always the same in the deterministic mode: how a product is shared out changes its bits."""
        if self._steps.fixed or len(batches) > 1:
            return self._threads_each
        rows = self._steps.rows(len(batches[0].requests))
        return self._threads if rows * self._work_per_row >= WORTH_ALL_THREADS else self._threads_each
