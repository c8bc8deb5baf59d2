"""Batches of requests that are decoded together, and the step that samples the next token of each.

Shapes: B rows of a step, which may be more than there are requests; the others as in `kv_cache.py`.
"""

import shutil
import time
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import FunctionType
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.jit._fuser import optimized_execution

from ...errors import MetaAgentXError
from .kv_cache import KVLayout, KVSlots, whole_pages
from .model_runner import ModelRunner, NativeRunner
from .prefix_tree import common_prefix
from .requests import SampleRequest
from .sampler import sample_tokens

COMPILE_AFTER_SECONDS = 30.0
"""Compiling takes 10 to 20 s and saves about half of every second after it."""
MAX_WORKERS = 4
"""The Python part of a step runs in one thread at a time: more workers would wait for each other."""
MIN_PARALLEL_MULTIPLICATIONS = 150_000_000
"""From this many multiplications in a step on, splitting each operation among torch's threads pays."""
MIN_SHARING_ROWS = 4
MIN_SHARED_POSITIONS = 128
"""From these on, attending once for all rows to a shared prefix pays."""


class DecodeInputs(NamedTuple):
    """What a step starts from. Rows without a request read token 0 at position 0 in every step."""

    tokens_B: Tensor
    positions_B: Tensor
    advance_B: Tensor
    """1 for rows with a request, 0 for the others."""
    temperatures_B: Tensor
    some_greedy: bool
    shared: int
    """Length of the prefix that all rows share; 0 where it is too short to matter."""


class DecodeStep:
    """Runs decode steps, compiled ones where that is configured or pays."""

    def __init__(self, runner: ModelRunner, compiled: bool | Literal["auto"], fixed_rows: int | None) -> None:
        """Prepare to decode. `fixed_rows`: rows of every step, over their full capacity, so that all have one shape."""
        self._runner = runner
        self._fixed_rows = fixed_rows
        self._compiled: Callable[..., Tensor] | None = None
        self._traced: dict[tuple[int, int, bool], Callable[..., Tensor]] = {}
        problem = _compile_problem(runner)
        self._may_compile = compiled == "auto" and fixed_rows is None and problem is None
        self._uncompiled_seconds = 0.0
        self.fixed_shape = fixed_rows is not None
        if compiled is True:
            if problem is not None:
                raise MetaAgentXError(f'model.compiled = true: {problem}; set model.compiled to "auto" or false')
            self._compile()

    def rows(self, requests: int) -> int:
        """Return how many rows a step with this many requests has."""
        if self._fixed_rows is not None:
            return self._fixed_rows
        return max(requests, 2) if self._compiled else requests  # a batch of one would be compiled separately

    def run(self, slots: KVSlots, inputs: DecodeInputs, uniforms_B: Tensor, length: int) -> Tensor:
        """Return sampled tokens and their log-probabilities, [2, B]."""
        if self.fixed_shape:
            length = slots.capacity
        if self._compiled is not None and isinstance(self._runner, NativeRunner) and not inputs.shared:
            mask_B_T = self._runner.decode_mask(inputs.positions_B, length)
            keys = [keys_S_K_T_D[: len(uniforms_B)] for keys_S_K_T_D in slots.keys_S_K_T_D]
            values = [values_S_K_T_D[: len(uniforms_B)] for values_S_K_T_D in slots.values_S_K_T_D]
            for tensor in (*keys, *values):
                torch._dynamo.mark_dynamic(tensor, (0, 2))
            torch._dynamo.mark_dynamic(mask_B_T, (0, 1))
            for tensor in (inputs.tokens_B, inputs.positions_B, inputs.advance_B, inputs.temperatures_B, uniforms_B):
                torch._dynamo.mark_dynamic(tensor, 0)
            return self._compiled(keys, values, inputs, mask_B_T, uniforms_B)
        if self.fixed_shape and isinstance(self._runner, NativeRunner) and self._runner.traceable:
            return self._run_traced(self._runner, slots, inputs, uniforms_B)
        started = time.perf_counter()
        logits_B_V = self._runner.decode(slots, inputs.tokens_B, inputs.positions_B, length, inputs.shared)
        sampled_2_B = sample_tokens(logits_B_V, inputs.temperatures_B, uniforms_B, inputs.some_greedy)
        if self._may_compile:
            self._uncompiled_seconds += time.perf_counter() - started
        return sampled_2_B

    def _run_traced(self, runner: NativeRunner, slots: KVSlots, inputs: DecodeInputs, uniforms_B: Tensor) -> Tensor:
        """Run the step as one operation of torch: the same operations, without Python and its lock between them.

        Where other threads run Python, an operation waits for the lock longer than it takes.
        """
        arguments = (
            inputs.tokens_B, inputs.positions_B, inputs.temperatures_B, uniforms_B,
            *(tensor[: len(uniforms_B)] for tensor in (*slots.keys_S_K_T_D, *slots.values_S_K_T_D)),
        )  # fmt: skip
        key = (len(uniforms_B), slots.capacity, inputs.some_greedy)
        if key not in self._traced:

            def step(
                tokens_B: Tensor, positions_B: Tensor, temperatures_B: Tensor, uniforms_B: Tensor, *keys_values: Tensor
            ) -> Tensor:
                mask_B_T = runner.decode_mask(positions_B, slots.capacity)
                layers = runner.layout.layers
                keys, values = list(keys_values[:layers]), list(keys_values[layers:])
                logits_B_V = runner.decode_tensors(keys, values, tokens_B, positions_B, mask_B_T)
                return sample_tokens(logits_B_V, temperatures_B, uniforms_B, inputs.some_greedy)

            # Tracing runs the step, too, so it gets copies.
            copies = tuple(argument.clone() for argument in arguments)
            with warnings.catch_warnings():  # that a traced step has one shape is what we want
                warnings.simplefilter("ignore")
                self._traced[key] = torch.jit.trace(step, copies, check_trace=False)
        with optimized_execution(False):  # not fused, so that no bit changes
            sampled_2_B: Tensor = self._traced[key](*arguments)
        return sampled_2_B

    def compile_if_it_pays(self) -> None:
        """Compile the step after enough seconds in uncompiled steps."""
        if self._may_compile and self._uncompiled_seconds > COMPILE_AFTER_SECONDS and self._compiled is None:
            self._compile()

    def _compile(self) -> None:
        runner = self._runner
        assert isinstance(runner, NativeRunner)

        def step(
            keys: list[Tensor], values: list[Tensor], inputs: DecodeInputs, mask_B_T: Tensor, uniforms_B: Tensor
        ) -> Tensor:
            logits_B_V = runner.decode_tensors(keys, values, inputs.tokens_B, inputs.positions_B, mask_B_T)
            return sample_tokens(logits_B_V, inputs.temperatures_B, uniforms_B, inputs.some_greedy)

        # A copy of the code object: torch counts compilations of one code object over all engines of a process.
        step_copy = FunctionType(step.__code__.replace(), step.__globals__, closure=step.__closure__)
        self._compiled = torch.compile(step_copy, fullgraph=True, dynamic=False)


def _compile_problem(runner: ModelRunner) -> str | None:
    """Return why decode steps of this model cannot be compiled here, or None."""
    if not isinstance(runner, NativeRunner):
        return "only models that our own forward pass decodes can be compiled (Qwen3 and Llama)"
    if runner.packed:
        return "steps with packed weights cannot be compiled"
    if runner.layout.device.type == "cpu" and not shutil.which("g++"):
        return "compiling for a CPU needs a C++ compiler, and g++ was not found"
    return None


class DecodeBatch:
    """Requests of one size class that are decoded together; request i is in slot i.

    Requests join and leave first, and `allocate` then fits the slots to them.
    """

    def __init__(self, layout: KVLayout, size_class: int, decode_step: DecodeStep) -> None:
        self.size_class = size_class
        self.slots = KVSlots(layout)
        self.requests: list[SampleRequest] = []
        self.longest = 0
        """Length of the longest request."""
        self._decode_step = decode_step
        self._inputs: DecodeInputs | None = None
        self._device = layout.device

    def join(self, request: SampleRequest) -> None:
        """Add a request. Its keys and values are to be written after `allocate`."""
        self.requests.append(request)
        self.longest = max(self.longest, request.length)
        self._inputs = None

    def read(self, request: SampleRequest) -> Tensor:
        """Return a copy of the keys and values of a request, [L, 2, K, T, D]."""
        return self.slots.read(self.requests.index(request), request.length - 1)

    def write(self, request: SampleRequest, kv_L_2_K_T_D: Tensor) -> None:
        """Write the first keys and values of a request."""
        self.slots.write(self.requests.index(request), kv_L_2_K_T_D)

    def remove(self, request: SampleRequest) -> None:
        """Remove a request; the last one takes its slot."""
        slot, last = self.requests.index(request), self.requests[-1]
        if len(self.requests) <= self.slots.count:  # otherwise the last has no slot yet
            self.slots.move(len(self.requests) - 1, slot, last.length - 1)
        self.requests[slot] = last
        self.requests.pop()
        self.longest = max((request.length for request in self.requests), default=0)
        self._inputs = None

    def absorb(self, other: "DecodeBatch") -> None:
        """Take over all requests of another batch, with their keys and values."""
        self.longest = max(self.longest, other.longest)
        self.slots.append(len(self.requests), other.slots, len(other.requests), whole_pages(self.longest))
        self.requests += other.requests
        other.requests = []
        self._inputs = None

    def positions(self, tight: bool, headroom: int = 0) -> int:
        """Return how many positions `allocate` takes for these requests, each `headroom` longer than now."""
        slots, capacity = self._shape(tight, headroom)
        return slots * capacity

    def allocate(self, tight: bool) -> None:
        """Fit the slots to the requests; `tight`: without spare slots, or pages that a longer request has left."""
        self.slots.resize(*self._shape(tight))

    def _shape(self, tight: bool, headroom: int = 0) -> tuple[int, int]:
        slots, capacity = self._decode_step.rows(len(self.requests)), whole_pages(self.longest + headroom)
        if self._decode_step.fixed_shape:
            return slots, self.size_class
        if tight or not self.slots.count:
            return slots, capacity
        if capacity > self.slots.capacity:  # everything is copied anyway, so spare slots need not be
            return slots, capacity
        spare = self.slots.count if slots <= self.slots.count else self.slots.count * 5 // 4
        return max(slots, spare), self.slots.capacity

    def step(self) -> list[SampleRequest]:
        """Sample the next token of each request and return the finished requests."""
        decode_step = self._decode_step
        rows = decode_step.rows(len(self.requests))
        if self._inputs is None or len(self._inputs.tokens_B) != rows:
            shared = 0 if decode_step.fixed_shape or rows > len(self.requests) else shared_prefix(self.requests)
            self._inputs = self._new_inputs(rows, shared)
        uniforms = [request.draw() for request in self.requests] + [0.5] * (rows - len(self.requests))
        uniforms_B = torch.tensor(uniforms, dtype=torch.float64, device=self._device)
        sampled_2_B = decode_step.run(self.slots, self._inputs, uniforms_B, self.longest)
        self._inputs = self._inputs._replace(
            tokens_B=sampled_2_B[0].long() * self._inputs.advance_B,
            positions_B=self._inputs.positions_B + self._inputs.advance_B,
        )
        tokens, logprobs = sampled_2_B.tolist()
        self.longest += 1
        sampled = zip(self.requests, tokens, logprobs, strict=False)  # further rows have no request
        return [request for request, token, logprob in sampled if request.append(int(token), logprob)]

    def _new_inputs(self, rows: int, shared: int) -> DecodeInputs:
        unused = rows - len(self.requests)

        def tensor(values: list[int] | list[float], filler: float) -> Tensor:
            return torch.tensor([*values, *[type(values[0])(filler)] * unused], device=self._device)

        return DecodeInputs(
            tokens_B=tensor([request.last_token for request in self.requests], 0),
            positions_B=tensor([request.length - 1 for request in self.requests], 0),
            advance_B=tensor([1] * len(self.requests), 0),
            temperatures_B=tensor([float(request.params.temperature) for request in self.requests], 1.0),
            some_greedy=any(request.params.temperature == 0 for request in self.requests),
            shared=shared,
        )


def shared_prefix(requests: Sequence[SampleRequest]) -> int:
    """Return the length of the computed prefix that all requests share; 0 where sharing it does not pay."""
    if len(requests) < MIN_SHARING_ROWS:
        return 0
    prompts = [request.prompt for request in requests]
    shared = min(common_prefix(min(prompts), max(prompts)), min(map(len, prompts)) - 1)
    return shared if shared >= MIN_SHARED_POSITIONS else 0


class DecodeWorkers:
    """Threads that run a step of several batches at once, each batch in one thread.

    A step is many small operations. Splitting each of them among torch's threads takes longer than computing it, all
    the more beside other busy processes; batches side by side wait for nothing but the slowest of them. A single batch
    gets all of torch's threads if its step is large enough.
    """

    def __init__(self, runner: ModelRunner, decode_step: DecodeStep) -> None:
        self._decode_step = decode_step
        self._multiplications_per_row = runner.weight_count
        self._threads = torch.get_num_threads()
        parallel = isinstance(runner, NativeRunner) and runner.layout.device.type == "cpu"
        self.count = min(self._threads, MAX_WORKERS) if parallel else 1
        self._threads_each = max(1, self._threads // self.count)
        self._pool = ThreadPoolExecutor(
            max(1, self.count - 1), "decode", initializer=torch.set_num_threads, initargs=(self._threads_each,)
        )

    def step(self, batches: Sequence[DecodeBatch]) -> list[list[SampleRequest]]:
        """Sample the next token of every request and return the finished requests of each batch."""
        finished: list[list[SampleRequest]] = [[] for _ in batches]
        pending = deque(enumerate(batches))

        def work() -> None:
            with torch.inference_mode():
                while True:
                    try:
                        index, batch = pending.popleft()
                    except IndexError:
                        return
                    finished[index] = batch.step()

        torch.set_num_threads(self._threads_for(batches))
        others: list[Future[None]] = []
        try:
            for _ in range(min(len(batches), self.count) - 1):
                others.append(self._pool.submit(work))
            work()
        finally:
            wait(others)  # also after an error: nothing touches a batch any more when this returns
            torch.set_num_threads(self._threads)
        for other in others:
            other.result()
        return finished

    def _threads_for(self, batches: Sequence[DecodeBatch]) -> int:
        """Return torch's threads for this step: always the same with a fixed shape, as they change a product's bits."""
        if self._decode_step.fixed_shape or len(batches) > 1:
            return self._threads_each
        multiplications = self._decode_step.rows(len(batches[0].requests)) * self._multiplications_per_row
        return self._threads if multiplications >= MIN_PARALLEL_MULTIPLICATIONS else self._threads_each
