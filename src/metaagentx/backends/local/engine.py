"""Samples completions for many callers at once: continuous batching over a KV cache with prefix reuse.

Requests join and leave while others are decoded; shared prefixes are prefilled once; keys and values stay within a
budget, and requests that do not fit wait. The work is done in the model's thread a few steps at a time, so that
training on the same model gets its turn; if training changes the weights, running requests are prefilled again.
An error fails all requests under way, and the engine continues empty.

A request's draws depend on its seed and on nothing else in the batch. In deterministic mode its bits do not either:
every step has the same shape, prompts are prefilled in chunks at fixed positions, and keys and values from decoding are
not reused, so that other requests, the order of arrival and the contents of the cache do not matter.
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
from .decoding import DecodeBatch, DecodeStep, DecodeWorkers
from .kv_cache import PrefixCache, capacity_for
from .memory import is_out_of_memory, one_line, raised_at, translate_out_of_memory
from .model import LocalModel
from .model_runner import ModelRunner, NativeRunner, PrefillChunk, is_native
from .requests import SampleRequest, StopStrings
from .transformers_runner import TransformersRunner

_log = logging.getLogger(__name__)

STEPS_PER_TURN = 16
MAX_PREFILL_TOKENS = 4096
"""The most tokens in one prefill pass."""
BLOCK_SIZE = 16
DETERMINISTIC_BLOCK_SIZE = 64
SPLIT_FROM_ROWS = 32
"""When a batch has this many rows, further requests start another batch, as long as there are workers for it."""
DEFAULT_BUDGET_BYTES = 1 << 30


class Engine:
    """The sampler of one model. Compiling takes about 10 s and pays in long runs; "auto" waits until it does."""

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
        """Prepare to sample from a model.

        `kv_budget_tokens` limits the cached positions, by default to what fits in 1 GiB. `deterministic_rows` is the
        number of rows of every step in that mode, used or not; another number gives other bits, and about half the
        number of concurrent requests is fast.
        """
        self._model = model
        too_large = "out of memory while preparing to sample: use a smaller model, or a machine with more memory"
        with translate_out_of_memory(MetaAgentXError, too_large):
            self._runner: ModelRunner = NativeRunner(model) if is_native(model.module) else TransformersRunner(model)
        self._decode_step = DecodeStep(self._runner, compiled, deterministic_rows if deterministic else None)
        self._workers = DecodeWorkers(self._runner, self._decode_step)
        self._max_rows = deterministic_rows if deterministic else max_batch
        self._max_batch = max_batch
        self._deterministic = deterministic
        fits = max(DEFAULT_BUDGET_BYTES // self._runner.layout.bytes_per_token, capacity_for(model.context_length))
        self._budget = fits if kv_budget_tokens is None else kv_budget_tokens
        block_size = DETERMINISTIC_BLOCK_SIZE if deterministic else BLOCK_SIZE
        self._prefix_cache = PrefixCache(block_size, keep_tails=deterministic)
        self._batches: list[DecodeBatch] = []
        self._queue: deque[SampleRequest] = deque()
        self._version = model.version
        self._unseeded: Counter[bytes] = Counter()
        self._lock = Lock()  # guards the next three, which callers touch too
        self._waiting: set[SampleRequest] = set()
        self._inbox: deque[SampleRequest] = deque()
        self._working = False
        self._sampled_tokens = 0
        self._busy_seconds = 0.0

    def stats(self) -> dict[str, float]:
        """Return totals since the start: sampled tokens, and seconds spent in prefill and decode."""
        return {"sampled_tokens": float(self._sampled_tokens), "busy_seconds": self._busy_seconds}

    async def sample(self, prompt: Sequence[int], params: SamplingParams) -> Completion:
        """Sample one completion; concurrent calls are batched."""
        request = self._make_request(tuple(prompt), params)
        with self._lock:
            if not self._working:
                try:
                    self._model.submit(self._work)
                except RuntimeError as error:  # no more threads can be started
                    raise BackendError(f"sampling could not start: {one_line(error)}") from None
                self._working = True
            self._waiting.add(request)
            self._inbox.append(request)
        request.future.add_done_callback(lambda _: self._waiting.discard(request))
        return await asyncio.wrap_future(request.future)

    def _make_request(self, prompt: tuple[int, ...], params: SamplingParams) -> SampleRequest:
        room = self._model.context_length - len(prompt)
        vocabulary: int = self._model.module.config.vocab_size
        if not prompt or min(prompt) < 0 or max(prompt) >= vocabulary:
            raise MetaAgentXError(f"invalid prompt: expected one or more tokens from 0 to {vocabulary - 1}")
        if room < 1:
            raise MetaAgentXError(
                f"the prompt has {len(prompt)} tokens, and the model's context of {self._model.context_length} leaves "
                "no room for a reply: shorten the prompt or use a model with a longer context"
            )
        if params.max_tokens < 1 or params.temperature < 0:
            raise MetaAgentXError(
                f"max_tokens must be >= 1 and temperature >= 0, got {params.max_tokens} and {params.temperature}"
            )
        max_tokens = min(params.max_tokens, room)
        capacity = capacity_for(len(prompt) + max_tokens)
        if capacity > self._budget:
            raise MetaAgentXError(
                f"a request for {max_tokens} tokens after {len(prompt)} takes {capacity} positions, and "
                f"kv_budget_tokens is {self._budget}: raise it or request fewer tokens"
            )
        tokenizer = self._model.tokenizer
        end_tokens = tokenizer.end_tokens.union(params.stop_tokens)
        stop_strings = StopStrings(params.stop, tokenizer) if params.stop else None
        return SampleRequest(prompt, params, max_tokens, end_tokens, stop_strings, self._make_rng(prompt, params.seed))

    def _make_rng(self, prompt: tuple[int, ...], seed: int | None) -> random.Random:
        if seed is not None or not self._deterministic:
            return random.Random(seed)
        digest = hashlib.sha256(repr(prompt).encode()).digest()
        self._unseeded[digest] += 1
        return random.Random(digest + self._unseeded[digest].to_bytes(8, "big"))

    # From here on everything runs in the model's thread.

    def _work(self) -> None:
        """Run a few steps and, where requests are left, submit itself again, behind other work for the model."""
        started = time.perf_counter()
        failure: Exception | None = None
        try:
            with torch.inference_mode():
                self._drop_canceled()
                for _ in range(STEPS_PER_TURN):
                    self._check_weights()
                    self._schedule()
                    self._step()
                self._decode_step.compile_if_it_pays()
        except Exception as error:  # noqa: BLE001  the callers are waiting in other threads: each of them gets it
            failure = self._translate(error)
        if failure is not None:  # only here, where no traceback refers to the tensors of the failed step any more
            self._fail_all(failure)
        self._busy_seconds += time.perf_counter() - started
        with self._lock:
            self._working = bool(self._inbox or self._queue or self._batches)
            if self._working:
                self._model.submit(self._work)

    def _translate(self, error: Exception) -> Exception:
        """Return the error that the callers get: a `BackendError`, because a retry may succeed."""
        if isinstance(error, MetaAgentXError):
            return error
        _log.debug("sampling failed", exc_info=error)
        if not is_out_of_memory(error):
            return BackendError(f"sampling failed: {type(error).__name__} in {raised_at(error)}: {one_line(error)}")
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
        self._batches.clear()
        self._prefix_cache.clear()
        gc.collect()  # a reference cycle may hold the keys and values of the failed batch
        if self._model.device.type == "cuda":
            torch.cuda.empty_cache()
        for request in waiting:
            request.fail(type(failure)(str(failure)))

    def _running(self) -> list[SampleRequest]:
        return [request for batch in self._batches for request in batch.requests]

    def _check_weights(self) -> None:
        """Discard everything computed from old weights, if they have changed, and queue running requests again."""
        if self._version != self._model.version:
            version = self._model.version
            self._runner.refresh_weights()
            self._version = version  # not before: a refresh that fails is repeated
            self._prefix_cache.clear()
            self._queue.extendleft(reversed(self._running()))
            self._batches.clear()

    def _drop_canceled(self) -> None:
        for batch in self._batches:
            for request in [request for request in batch.requests if request.future.cancelled()]:
                batch.remove(request)
        self._batches = [batch for batch in self._batches if batch.requests]

    def _step(self) -> None:
        """Sample the next token of every running request."""
        for batch in list(self._batches):
            for request in batch.outgrown():
                self._batch_for(request, len(batch.requests)).add(request, batch.remove(request))
        self._batches = [batch for batch in self._batches if batch.requests]
        if not self._batches:
            return
        self._sampled_tokens += sum(len(batch.requests) for batch in self._batches)
        for batch, finished in zip(self._batches, self._workers.step(self._batches), strict=True):
            for request in finished:
                kv_L_2_K_T_D = batch.remove(request)
                if not self._deterministic:
                    self._prefix_cache.add(request.computed_tokens(), kv_L_2_K_T_D)
        self._batches = [batch for batch in self._batches if batch.requests]

    def _batch_for(self, request: SampleRequest, coming: int) -> DecodeBatch:
        """Return a batch of the right capacity with a free slot; a new one expects the requests `coming` with this."""
        capacity = capacity_for(request.length)
        split = not self._deterministic and len(self._batches) < self._workers.count
        max_rows = SPLIT_FROM_ROWS if split else self._max_rows
        batches = [b for b in self._batches if b.slots.capacity == capacity and len(b.requests) < max_rows]
        batches.sort(key=lambda batch: len(batch.requests))
        if batches:
            # Batches of equal size keep the workers busy. Where a step costs the same however few rows are used, the
            # fewest batches are best.
            return batches[-1 if self._deterministic else 0]
        expected = coming if self._deterministic else -(-coming // self._workers.count)
        self._batches.append(DecodeBatch(self._runner.layout, capacity, min(expected, self._max_rows)))
        return self._batches[-1]

    def _schedule(self) -> None:
        """Prefill queued requests in order, as many as `max_batch` and the KV budget allow."""
        with self._lock:
            self._queue.extend(self._inbox)
            self._inbox.clear()
        if not self._queue:
            return
        running = self._running()
        reserved = sum(capacity_for(request.max_length) for request in running)
        scheduled: list[SampleRequest] = []
        while self._queue and len(running) + len(scheduled) < self._max_batch:
            needed = capacity_for(self._queue[0].max_length)
            if reserved + needed > self._budget:
                break
            request = self._queue.popleft()
            if not request.future.cancelled():
                reserved += needed
                scheduled.append(request)
        self._prefix_cache.evict(self._budget - reserved)
        while scheduled:
            scheduled = self._prefill(scheduled)
            self._prefix_cache.evict(self._budget - reserved)

    def _prefill(self, requests: list[SampleRequest]) -> list[SampleRequest]:
        """Prefill all but the last token of each request and return the requests that are to wait for the next round.

        Those share a longer prefix with a request of this round than with the prefix cache.
        """
        prefilling: set[int] = set()
        later: list[SampleRequest] = []
        started: list[tuple[SampleRequest, DecodeBatch, list[PrefillChunk]]] = []
        for request in requests:
            tokens = request.computed_tokens()
            cached = self._prefix_cache.lookup(tokens)
            hashes = self._prefix_cache.block_hashes(tokens)
            if len(hashes) > len(cached) and hashes[len(cached)] in prefilling:
                later.append(request)
                continue
            prefilling.update(hashes)
            batch = self._batch_for(request, len(requests))
            slot = batch.add(request, torch.cat(cached, dim=3) if cached else None)
            start = sum(block_L_2_K_T_D.shape[3] for block_L_2_K_T_D in cached)
            size = self._prefix_cache.block_size if self._deterministic else MAX_PREFILL_TOKENS
            chunks = [PrefillChunk(slot, at, tokens[at : at + size]) for at in range(start, len(tokens), size)]
            started.append((request, batch, chunks))
        self._run_prefill(started)
        for request, batch, chunks in started:
            if chunks:  # otherwise all of it was cached
                self._prefix_cache.add(request.computed_tokens(), batch.read(request))
        return later

    def _run_prefill(self, started: list[tuple[SampleRequest, DecodeBatch, list[PrefillChunk]]]) -> None:
        """Prefill many chunks in a pass; in deterministic mode one by one, so that each pass has its own shape."""
        max_tokens = 1 if self._deterministic else MAX_PREFILL_TOKENS
        pending: dict[DecodeBatch, list[PrefillChunk]] = {}
        for _, batch, chunks in started:
            for chunk in chunks:
                group = pending.setdefault(batch, [])
                if group and sum(len(other.tokens) for other in group) + len(chunk.tokens) > max_tokens:
                    self._runner.prefill(batch.slots, group)
                    group.clear()
                group.append(chunk)
        for batch, group in pending.items():
            self._runner.prefill(batch.slots, group)
