"""Samples completions for many callers at once: continuous batching over a KV cache with prefix reuse.

Requests join and leave while others are decoded; shared prefixes are prefilled once. Which requests run, and how much
of the KV cache they have, is the business of `scheduler.py`. The work is done in the model's thread a few steps at a
time, so that training on the same model gets its turn; if training changes the weights, running requests are prefilled
again. When memory runs out, all requests go back to the queue with what they have sampled, and half of the positions
that were in use are the budget from then on. Any other error fails all requests under way, and the engine continues
empty.

A request's draws depend on its seed and on nothing else in the batch. In deterministic mode its bits do not either:
every step has the same shape, prompts are prefilled in chunks at fixed positions, keys and values from decoding are
not reused, and a request that was sent back starts over, so that other requests, the order of arrival, the budget and
the contents of the cache do not matter.
"""

import asyncio
import gc
import hashlib
import logging
import time
from collections import Counter, deque
from collections.abc import Sequence
from functools import cache
from threading import Lock
from typing import Literal

import torch

from ...errors import MetaAgentXError
from ...policy import BackendError, Completion, SamplingParams
from ...progress import print_line
from ..memory_budget import DETERMINISTIC_ROWS, MAX_PREFILL_TOKENS, default_kv_budget
from .decoding import DecodeBatch, DecodeStep, DecodeWorkers
from .kv_cache import PAGE, PrefixCache
from .memory import available_bytes, is_out_of_memory, one_line, raised_at, translate_out_of_memory
from .model import LocalModel
from .model_runner import ModelRunner, NativeRunner, PrefillChunk, is_native, why_not_bf16
from .packed_linear import SamplingDtype
from .requests import SampleRequest, StopStrings
from .scheduler import Admitted, Scheduler, age
from .transformers_runner import TransformersRunner

_log = logging.getLogger(__name__)

STEPS_PER_TURN = 16
PREFILL_SECONDS = 1.0
"""After this long, requests that are running get their next token before more prompts are prefilled."""
PACKED_PREFILL_TOKENS = 1024
"""The most tokens in a prefill pass of a larger model on a CPU: what a layer computes for more leaves its caches."""
BLOCK_SIZE = 16
DETERMINISTIC_BLOCK_SIZE = 64


class Engine:
    """The sampler of one model. Compiling takes about 10 s and pays in long runs; "auto" waits until it does."""

    def __init__(  # noqa: PLR0913  named settings
        self,
        model: LocalModel,
        *,
        max_batch: int = 128,
        kv_budget_tokens: int | None = None,
        compiled: bool | Literal["auto"] = "auto",
        deterministic: bool = False,
        deterministic_rows: int = DETERMINISTIC_ROWS,
        sampling_dtype: SamplingDtype = "auto",
    ) -> None:
        """Prepare to sample from a model.

        `kv_budget_tokens` limits the cached positions, by default to what fits in half of the memory that is free now
        and whenever the weights have changed. `deterministic_rows` is the number of rows of every step in that mode,
        used or not; another number gives other bits, and about half the number of concurrent requests is fast.
        `sampling_dtype`: the type of the copies of the weights that are sampled from; where bf16 cannot be used, a line
        says so.
        """
        self._model = model
        too_large = "out of memory while preparing to sample: use a smaller model, or a machine with more memory"
        with translate_out_of_memory(MetaAgentXError, too_large):
            self._runner = _build_runner(model, sampling_dtype, may_pack=compiled is not True)
        fixed_rows = deterministic_rows if deterministic else None
        self._decode_step = DecodeStep(self._runner, compiled, fixed_rows)
        self._workers = DecodeWorkers(self._runner, self._decode_step)
        self._deterministic = deterministic
        self._prefix_cache = PrefixCache(
            DETERMINISTIC_BLOCK_SIZE if deterministic else BLOCK_SIZE, keep_tails=deterministic
        )
        self._scheduler = Scheduler(
            self._runner.layout,
            self._decode_step,
            self._prefix_cache,
            max_batch=max_batch,
            workers=self._workers.count,
            fixed_rows=fixed_rows,
        )
        self._configured_budget = kv_budget_tokens
        self._largest_budget: int | None = None
        """What out of memory has left of the budget."""
        self._set_budget()
        self._failed_alone = False
        """A single request has run out of memory, and none was finished since."""
        packed = isinstance(self._runner, NativeRunner) and self._runner.packed
        self._max_prefill = PACKED_PREFILL_TOKENS if packed else MAX_PREFILL_TOKENS
        self._version = model.version
        self._unseeded: Counter[bytes] = Counter()
        self._lock = Lock()  # guards the next three, which callers touch too
        self._waiting: set[SampleRequest] = set()
        self._inbox: deque[SampleRequest] = deque()
        self._working = False
        self._requests = 0
        self._sampled_tokens = 0
        self._busy_seconds = 0.0
        self._active_at = time.monotonic()
        """When it last finished a step or a prefill pass."""

    def stats(self) -> dict[str, float]:
        """Return totals since the start: sampled tokens, preempted requests, seconds spent in prefill and decode."""
        return {
            "sampled_tokens": float(self._sampled_tokens),
            "preemptions": float(self._scheduler.preemptions),
            "busy_seconds": self._busy_seconds,
        }

    async def sample(
        self, prompt: Sequence[int], params: SamplingParams, timeout_seconds: float | None = None
    ) -> Completion:
        """Sample one completion; concurrent calls are batched.

        Raises `TimeoutError` if it takes longer than the timeout from when it is admitted to a batch, or if the engine
        does nothing for that long while it waits for that.
        """
        request = self._submit(self._make_request(tuple(prompt), params))
        completion = asyncio.wrap_future(request.future)
        try:
            while timeout_seconds is not None and not completion.done():
                # In this order: the other thread sets the first to None, or sets it, at any time.
                since = request.admitted_at or max(self._active_at, request.asked_at)
                left = since + timeout_seconds - time.monotonic()
                if left <= 0:
                    raise TimeoutError
                await asyncio.wait([completion], timeout=left)
            return await completion
        finally:
            completion.cancel()

    def _submit(self, request: SampleRequest) -> SampleRequest:
        with self._lock:
            if not self._working:
                try:
                    self._model.submit(self._work)
                except RuntimeError as error:  # no more threads can be started
                    raise BackendError(f"sampling could not start: {one_line(error)}") from None
                self._working = True
            self._requests += 1
            request.number = self._requests
            self._waiting.add(request)
            self._inbox.append(request)
        request.future.add_done_callback(lambda _: self._waiting.discard(request))
        return request

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
        needed = self._scheduler.positions_alone(len(prompt) + max_tokens)
        if needed > self._budget:
            memory, fix = "the free memory holds", "use a smaller model or a machine with more memory"
            if self._configured_budget is not None:
                memory, fix = "model.kv_budget_tokens is", "raise it"
            if self._deterministic:
                fix += ", or set model.deterministic = false, which needs a fraction of that"
            raise MetaAgentXError(
                f"a request for {max_tokens} tokens after {len(prompt)} takes {needed} positions of the KV cache, and "
                f"{memory} {self._budget}: request fewer tokens, or {fix}"
            )
        tokenizer = self._model.tokenizer
        end_tokens = tokenizer.end_tokens.union(params.stop_tokens)
        stop_strings = StopStrings(params.stop, tokenizer) if params.stop else None
        return SampleRequest(prompt, params, max_tokens, end_tokens, stop_strings, self._seed_of(prompt, params.seed))

    def _seed_of(self, prompt: tuple[int, ...], seed: int | None) -> int | bytes | None:
        if seed is not None or not self._deterministic:
            return seed
        digest = hashlib.sha256(repr(prompt).encode()).digest()
        self._unseeded[digest] += 1
        return digest + self._unseeded[digest].to_bytes(8, "big")

    def _set_budget(self) -> None:
        """Set the budget to what is configured or fits now, and the scheduler's to what memory has proved to hold."""
        layout, full_context = self._runner.layout, self._scheduler.positions_alone(self._model.context_length)
        self._budget = self._configured_budget or default_kv_budget(
            available_bytes(layout.device), layout.bytes_per_token, full_context
        )
        self._scheduler.budget = min(self._budget, self._largest_budget or self._budget)

    # From here on everything runs in the model's thread.

    def _work(self) -> None:
        """Run a few steps and, where requests are left, submit itself again, behind other work for the model."""
        started = time.perf_counter()
        failure: Exception | None = None
        out_of_memory = False
        try:
            with torch.inference_mode():
                self._scheduler.drop_canceled()
                for _ in range(STEPS_PER_TURN):
                    self._check_weights()
                    self._schedule()
                    self._step()
                self._decode_step.compile_if_it_pays()
        except Exception as error:  # noqa: BLE001  the callers are waiting in other threads: each of them gets it
            failure, out_of_memory = self._translate(error), is_out_of_memory(error)
        # Only here, where no traceback refers to the tensors of the failed step any more.
        if out_of_memory:
            self._recover_memory()
        elif failure is not None:
            self._empty()
            self._fail(self._waiting_requests(), failure)
        self._busy_seconds += time.perf_counter() - started
        with self._lock:
            self._working = bool(self._inbox or self._scheduler.queue or self._scheduler.batches)
            if self._working:
                self._model.submit(self._work)

    def _translate(self, error: Exception) -> Exception:
        """Return the error that the callers get: a `BackendError`, because a retry may succeed."""
        if isinstance(error, MetaAgentXError):
            return error
        _log.debug("sampling failed", exc_info=error)
        return BackendError(f"sampling failed: {type(error).__name__} in {raised_at(error)}: {one_line(error)}")

    def _recover_memory(self) -> None:
        """Queue all requests again with half of the budget; fail a request that has run out of memory alone, twice."""
        running, needed = self._scheduler.running(), self._scheduler.positions(tight=True)
        self._empty()
        waiting = self._waiting_requests()
        if len(running) > 1:
            self._largest_budget = self._scheduler.budget = needed // 2
            self._max_prefill = max(PAGE, self._max_prefill // 2)
            _log.warning(
                "out of memory while sampling, with %d requests of %d positions: continuing with at most %d positions; "
                "lower model.kv_budget_tokens or model.max_batch to avoid this",
                len(running), needed, self._largest_budget,
            )  # fmt: skip
        elif not self._failed_alone:
            self._failed_alone = True
        else:
            length = max((request.length for request in running), default=0)
            message = (
                f"out of memory while sampling a single request, at {length} tokens: use a smaller model, fewer tokens "
                "(rollout.designer_tokens, rollout.executor_tokens) or a machine with more memory"
            )
            self._fail(running or waiting, MetaAgentXError(message))
        self._scheduler.send_back([request for request in waiting if not request.future.done()])

    def _waiting_requests(self) -> list[SampleRequest]:
        """Return all requests, wherever they were when a step failed, in the order of arrival."""
        with self._lock:
            self._inbox.clear()
            return sorted(self._waiting, key=age)

    def _empty(self) -> None:
        self._scheduler.clear()
        gc.collect()  # a reference cycle may hold the keys and values of the failed batch
        if self._model.device.type == "cuda":
            torch.cuda.empty_cache()

    def _fail(self, requests: list[SampleRequest], failure: Exception) -> None:
        for request in requests:
            request.fail(type(failure)(str(failure)))

    def _check_weights(self) -> None:
        """Discard everything computed from old weights, if they have changed, and queue running requests again."""
        if self._version != self._model.version:
            version = self._model.version
            self._runner.refresh_weights()
            self._version = version  # not before: a refresh that fails is repeated
            self._prefix_cache.clear()
            self._scheduler.send_back(self._scheduler.running())
            self._scheduler.batches.clear()
            self._set_budget()

    def _step(self) -> None:
        """Sample the next token of every running request."""
        self._scheduler.regroup()
        self._scheduler.make_room()
        batches = self._scheduler.batches
        if not batches:
            return
        self._sampled_tokens += sum(len(batch.requests) for batch in batches)
        for batch, finished in zip(batches, self._workers.step(batches), strict=True):
            for request in finished:
                if not self._deterministic:
                    self._prefix_cache.add(request.computed_tokens(), batch.read(request))
                batch.remove(request)
                self._failed_alone = False
        self._scheduler.drop_empty()
        self._active_at = time.monotonic()

    def _schedule(self) -> None:
        """Prefill queued requests in order, as many as `max_batch` and the KV budget allow."""
        with self._lock:
            self._scheduler.queue.extend(self._inbox)
            self._inbox.clear()
        stop_at = time.monotonic() + PREFILL_SECONDS
        while self._scheduler.queue and time.monotonic() < stop_at:
            admitted = self._scheduler.admit(self._max_prefill)
            if not admitted:
                break
            self._prefill(admitted)

    def _prefill(self, admitted: list[Admitted]) -> None:
        """Prefill all but the last token of each request.

        Many chunks are prefilled in a pass; in deterministic mode one by one, so that each pass has its own shape.
        """
        size = self._prefix_cache.block_size if self._deterministic else self._max_prefill
        max_tokens = 1 if self._deterministic else self._max_prefill
        pending: dict[DecodeBatch, list[PrefillChunk]] = {}
        for request, batch, cached, start in admitted:
            request.admitted_at = time.monotonic()
            if cached:
                batch.write(request, torch.cat(cached, dim=3))
            tokens, slot = request.computed_tokens(), batch.requests.index(request)
            for at in range(start, len(tokens), size):
                chunk = PrefillChunk(slot, at, tokens[at : at + size])
                group = pending.setdefault(batch, [])
                if group and sum(len(other.tokens) for other in group) + len(chunk.tokens) > max_tokens:
                    self._run_prefill(batch, group)
                    group.clear()
                group.append(chunk)
        for batch, group in pending.items():
            self._run_prefill(batch, group)
        for request, batch, _, start in admitted:
            if start < request.length - 1:  # otherwise all of it was cached
                self._prefix_cache.add(request.computed_tokens(), batch.read(request))

    def _run_prefill(self, batch: DecodeBatch, chunks: list[PrefillChunk]) -> None:
        self._runner.prefill(batch.slots, chunks)
        self._active_at = time.monotonic()


def _build_runner(model: LocalModel, sampling_dtype: SamplingDtype, *, may_pack: bool) -> ModelRunner:
    if sampling_dtype == "bfloat16" and (reason := why_not_bf16(model)) is not None:
        _print_ignored(reason)
    if is_native(model.module):
        return NativeRunner(model, sampling_dtype, may_pack=may_pack)
    return TransformersRunner(model)


@cache
def _print_ignored(reason: str) -> None:
    """Print this once: two roles may have an engine each."""
    print_line(f'model.sampling_dtype = "bfloat16" is ignored: {reason}')
