"""Samples completions for many callers at once.

Requests join and leave while decoding goes on; prompts that begin alike are read once; keys and values stay within a
budget, and requests that do not fit wait. The work is done in the model's thread a few steps at a time, so that
training on the same model gets its turn; if it changes the weights, what was read with the old ones is read again.
When something fails, all requests that are there fail with it, and the engine goes on empty.

A request's draws depend on its seed and on nothing else in the batch. In the deterministic mode the very bits do:
every step has the same shape, a prompt is read in pieces that begin at fixed places, and what sampling has read is
not reused, so that it does not matter who else is there, who came first, or what is still remembered.
"""

import asyncio
import gc
import hashlib
import logging
import random
import time
from collections import Counter, deque
from collections.abc import Sequence
from threading import Lock
from typing import Literal

import torch

from ...errors import MetaAgentXError
from ...policy import BackendError, Completion, SamplingParams
from .batches import Batch, Steps, Workers
from .decoder import Decoder, Part, PlainDecoder, is_plain
from .generic import GenericDecoder
from .kv import Blocks, capacity_for
from .memory import is_out_of_memory, one_line, origin, out_of_memory_is
from .model import LocalModel
from .requests import Request, StopTexts

_log = logging.getLogger(__name__)

STEPS_PER_TURN = 16
READ_AT_ONCE = 4096
"""Tokens of prompts in one pass."""
BLOCK = 16
DETERMINISTIC_BLOCK = 64
SPLIT_FROM_ROWS = 32
"""Of a batch, so that further requests begin another one beside it, as long as there are workers for it."""
DEFAULT_BUDGET_BYTES = 1 << 30


class Engine:
    """The sampler of one model. `compiled` pays for compiling (about 10 s) in long runs; "auto" waits until it does."""

    def __init__(
        self,
        model: LocalModel,
        *,
        max_batch: int = 128,
        kv_budget_tokens: int | None = None,
        compiled: bool | Literal["auto"] = "auto",
        deterministic: bool = False,
        deterministic_rows: int = 32,
    ) -> None:
        """`kv_budget_tokens`: how many positions are kept in all, by default as many as fit in 1 GiB.

        `deterministic_rows`: how many rows every step has in that mode, used or not. Other bits with another number;
        about half as many as there are requests at once is fast.
        """
        self._model = model
        too_large = "out of memory while preparing to sample: use a smaller model, or a machine with more memory"
        with out_of_memory_is(MetaAgentXError, too_large):
            self._decoder: Decoder = PlainDecoder(model) if is_plain(model.module) else GenericDecoder(model)
        self._steps = Steps(self._decoder, compiled, deterministic_rows if deterministic else None)
        self._workers = Workers(self._decoder, self._steps)
        self._rows = deterministic_rows if deterministic else max_batch
        self._max_batch = max_batch
        self._deterministic = deterministic
        fits = max(DEFAULT_BUDGET_BYTES // self._decoder.layout.bytes_per_token, capacity_for(model.context_length))
        self._budget = fits if kv_budget_tokens is None else kv_budget_tokens
        self._blocks = Blocks(DETERMINISTIC_BLOCK if deterministic else BLOCK, tails=deterministic)
        self._batches: list[Batch] = []
        self._queue: deque[Request] = deque()
        self._reading: list[Request] = []
        self._version = model.version
        self._unseeded: Counter[bytes] = Counter()
        self._lock = Lock()  # guards the next three, which callers touch too
        self._waiting: set[Request] = set()
        self._inbox: deque[Request] = deque()
        self._working = False
        self._tokens = 0
        self._turn_seconds = 0.0

    def work(self) -> dict[str, float]:
        """Since the beginning: tokens drawn, and seconds in which anything was drawn or read."""
        return {"sampled_tokens": float(self._tokens), "busy_seconds": self._turn_seconds}

    async def sample(self, prompt: Sequence[int], params: SamplingParams) -> Completion:
        """Draw one completion."""
        request = self._request(prompt, params)
        with self._lock:
            if not self._working:
                self._start()
            self._waiting.add(request)
            self._inbox.append(request)
        request.future.add_done_callback(lambda _: self._waiting.discard(request))
        return await asyncio.wrap_future(request.future)

    def _start(self) -> None:
        try:
            self._model.submit(self._work)
        except RuntimeError as error:  # there are no more threads to be had
            raise BackendError(f"sampling could not start: {one_line(error)}") from None
        self._working = True

    def _request(self, prompt: Sequence[int], params: SamplingParams) -> Request:
        prompt = tuple(prompt)
        room = self._model.context_length - len(prompt)
        vocabulary: int = self._model.module.config.vocab_size
        if not prompt or min(prompt) < 0 or max(prompt) >= vocabulary:
            raise MetaAgentXError(f"a prompt is one or more tokens from 0 to {vocabulary - 1}")
        if room < 1:
            raise MetaAgentXError(
                f"the prompt has {len(prompt)} tokens, and the model's context of {self._model.context_length} leaves "
                "no room for a reply: shorten the prompt or use a model with a longer context"
            )
        if params.max_tokens < 1 or params.temperature < 0:
            raise MetaAgentXError("max_tokens must be at least 1 and temperature at least 0")
        limit = min(params.max_tokens, room)
        if capacity_for(len(prompt) + limit) > self._budget:
            raise MetaAgentXError(
                f"a request for {limit} tokens after {len(prompt)} takes {capacity_for(len(prompt) + limit)} places, "
                f"and kv_budget_tokens is {self._budget}: raise it or ask for less"
            )
        tokenizer = self._model.tokenizer
        ends = tokenizer.end_tokens.union(params.stop_tokens)
        stops = StopTexts(params.stop, tokenizer) if params.stop else None
        return Request(prompt, params, limit, ends, stops, self._chance(prompt, params.seed))

    def _chance(self, prompt: tuple[int, ...], seed: int | None) -> random.Random:
        if seed is not None or not self._deterministic:
            return random.Random(seed)
        digest = hashlib.sha256(repr(prompt).encode()).digest()
        self._unseeded[digest] += 1
        return random.Random(digest + self._unseeded[digest].to_bytes(8, "big"))

    # From here on everything runs in the model's thread.

    def _work(self) -> None:
        """A few steps, then the same again after whoever else waits for the model."""
        began = time.perf_counter()
        failure: Exception | None = None
        try:
            with torch.inference_mode():
                self._notice_cancelled()
                for _ in range(STEPS_PER_TURN):
                    self._notice_new_weights()
                    self._admit()
                    self._step()
                self._steps.compile_if_it_pays()
        except Exception as error:  # noqa: BLE001  the callers are waiting in other threads: each of them gets it
            failure = self._explain(error)
        if failure is not None:  # only here, where nothing holds on to the tensors of what failed any more
            self._fail_all(failure)
        self._turn_seconds += time.perf_counter() - began
        with self._lock:
            self._working = bool(self._inbox or self._queue or self._batches)
            if self._working:
                self._model.submit(self._work)

    def _explain(self, error: Exception) -> Exception:
        """What the callers are told: a `BackendError`, because asking again may help."""
        if isinstance(error, MetaAgentXError):
            return error
        _log.debug("sampling failed", exc_info=error)
        if not is_out_of_memory(error):
            return BackendError(f"sampling failed: {type(error).__name__} in {origin(error)}: {one_line(error)}")
        with self._lock:
            requests = len(self._waiting) - len(self._queue) - len(self._inbox)
        return BackendError(
            f"out of memory while sampling, with {requests} requests at once: lower model.max_batch (now "
            f"{self._max_batch}) or model.kv_budget_tokens (now {self._budget}), or use a smaller model"
        )

    def _fail_all(self, failure: Exception) -> None:
        with self._lock:
            waiting = list(self._waiting)  # wherever they were when it failed
            self._inbox.clear()
        self._queue.clear()
        self._reading.clear()
        self._batches.clear()
        self._blocks.clear()
        gc.collect()  # what failed may hold the keys and values of its batch in a circle of references
        if self._model.device.type == "cuda":
            torch.cuda.empty_cache()
        for request in waiting:
            request.fail(type(failure)(str(failure)))

    def _live(self) -> list[Request]:
        return [request for batch in self._batches for request in batch.requests]

    def _notice_new_weights(self) -> None:
        if self._version != self._model.version:
            version = self._model.version
            self._decoder.refresh()
            self._version = version  # not before: what fails in there is done again
            self._blocks.clear()
            self._queue.extendleft(reversed(self._live()))
            self._batches.clear()

    def _notice_cancelled(self) -> None:
        for batch in list(self._batches):
            for request in batch.abandoned():
                batch.leave(request)
            if not batch.requests:
                self._batches.remove(batch)

    def _step(self) -> None:
        for batch in list(self._batches):
            for request in batch.outgrown():
                self._place(request, len(batch.requests)).join(request, batch.leave(request))
        self._batches = [batch for batch in self._batches if batch.requests]
        if not self._batches:
            return
        self._tokens += sum(len(batch.requests) for batch in self._batches)
        for batch, finished in zip(self._batches, self._workers.step(self._batches), strict=True):
            for request in finished:
                kv_L_2_K_T_D = batch.leave(request)
                if not self._deterministic:
                    self._blocks.add(request.context(), kv_L_2_K_T_D)
        self._batches = [batch for batch in self._batches if batch.requests]

    def _place(self, request: Request, coming: int) -> Batch:
        """A batch of the right capacity with a row to spare, and room for as many as may come with this request."""
        capacity = capacity_for(request.length)
        alike = [batch for batch in self._batches if batch.lane.capacity == capacity]
        full = self._rows if self._deterministic or len(self._batches) >= self._workers.count else SPLIT_FROM_ROWS
        alike = sorted((batch for batch in alike if len(batch.requests) < full), key=lambda batch: len(batch.requests))
        if alike:
            # Workers are best busy with batches of one size; where a step costs the same however few rows are used,
            # the fewest batches are best.
            return alike[-1 if self._deterministic else 0]
        rows = coming if self._deterministic else -(-coming // self._workers.count)
        self._batches.append(Batch(self._decoder.layout, capacity, min(rows, self._rows)))
        return self._batches[-1]

    def _admit(self) -> None:
        with self._lock:
            self._queue.extend(self._inbox)
            self._inbox.clear()
        if not self._queue:
            return
        live = self._live()
        held = sum(capacity_for(request.need) for request in live)
        admitted: list[Request] = []
        while self._queue and len(live) + len(admitted) < self._max_batch:
            need = capacity_for(self._queue[0].need)
            if held + need > self._budget:
                break
            request = self._queue.popleft()
            if not request.future.cancelled():
                held += need
                admitted.append(request)
        self._blocks.shrink(self._budget - held)
        self._reading = admitted
        while self._reading:
            self._reading = self._read(self._reading)
            self._blocks.shrink(self._budget - held)

    def _read(self, requests: list[Request]) -> list[Request]:
        """Read all but the last token of each request, and give back those that had better wait for others.

        That is who shares more of its beginning with a request of this round than with what is remembered.
        """
        seen: set[int] = set()
        later: list[Request] = []
        started: list[tuple[Request, Batch, list[Part]]] = []
        for request in requests:
            context = request.context()
            known = self._blocks.longest(context)
            marks = _marks(context, self._blocks)
            if len(marks) > len(known) and marks[len(known)] in seen:
                later.append(request)
                continue
            seen.update(marks)
            batch = self._place(request, len(requests))
            row = batch.join(request, torch.cat(known, dim=3) if known else None)
            started.append((request, batch, self._parts(row, context, sum(block.shape[3] for block in known))))
        self._extend(started)
        for request, batch, parts in started:
            if parts:  # otherwise all of it was known
                context = request.context()
                self._blocks.add(context, batch.read(request, len(context)))
        return later

    def _parts(self, row: int, context: list[int], start: int) -> list[Part]:
        size = self._blocks.size if self._deterministic else READ_AT_ONCE
        return [Part(row, at, context[at : at + size]) for at in range(start, len(context), size)]

    def _extend(self, started: list[tuple[Request, Batch, list[Part]]]) -> None:
        """Read the parts, many at a time; in the deterministic mode one by one, so that each has its own shape."""
        at_once = 1 if self._deterministic else READ_AT_ONCE
        waiting: dict[Batch, list[Part]] = {}
        for _, batch, parts in started:
            for part in parts:
                gathered = waiting.setdefault(batch, [])
                if gathered and sum(len(p.tokens) for p in gathered) + len(part.tokens) > at_once:
                    self._decoder.extend(batch.lane, gathered)
                    gathered.clear()
                gathered.append(part)
        for batch, gathered in waiting.items():
            self._decoder.extend(batch.lane, gathered)


def _marks(tokens: list[int], blocks: Blocks) -> list[int]:
    """One number for each block of a sequence, which stands for all that has come up to its end."""
    marks, before = [], 0
    for start in blocks.places(len(tokens)):
        before = hash((before, *tokens[start : start + blocks.size]))
        marks.append(before)
    return marks
