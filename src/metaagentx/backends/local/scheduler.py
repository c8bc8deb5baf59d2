"""Which requests are sampled now: the queue, the batches, and the pages of the KV cache that they may take.

Requests are admitted in the order of arrival while the budget has room for what they have and a page more. When those
that run have outgrown it, the youngest go back to the queue: so the oldest always ends, and then the next one is.
"""

from collections import deque
from typing import NamedTuple

from torch import Tensor

from .decoding import DecodeBatch, DecodeStep
from .kv_cache import PAGE, KVLayout, PrefixCache, size_class, whole_pages
from .requests import SampleRequest

SPLIT_FROM_ROWS = 32
"""When a batch has this many rows, further requests start another batch, as long as there are workers for it."""
PREFIX_SHARE = 0.25
"""The most of the budget that cached prefixes may take."""


class Admitted(NamedTuple):
    """A request that has joined a batch, with its cached blocks; it is to be prefilled from `start` on."""

    request: SampleRequest
    batch: DecodeBatch
    cached: list[Tensor]
    start: int


class Scheduler:
    """The requests of one engine. Everything here runs in the model's thread."""

    def __init__(
        self,
        layout: KVLayout,
        decode_step: DecodeStep,
        prefix_cache: PrefixCache,
        *,
        max_batch: int,
        workers: int,
        fixed_rows: int | None,
    ) -> None:
        self.prefix_cache = prefix_cache
        self.batches: list[DecodeBatch] = []
        self.queue: deque[SampleRequest] = deque()
        self.budget = 0
        """How many positions the batches and the prefix cache may have together. A single request may have more."""
        self.preemptions = 0
        self._layout = layout
        self._decode_step = decode_step
        self._max_batch = max_batch
        self._max_rows = fixed_rows or max_batch
        self._workers = workers
        self._deterministic = fixed_rows is not None

    def clear(self) -> None:
        """Forget all requests and everything that is cached."""
        self.queue.clear()
        self.batches.clear()
        self.prefix_cache.clear()

    def running(self) -> list[SampleRequest]:
        """Return the requests that are in a batch."""
        return [request for batch in self.batches for request in batch.requests]

    def positions(self, tight: bool, headroom: int = 0) -> int:
        """Return how many positions all batches take."""
        return sum(batch.positions(tight, headroom) for batch in self.batches)

    def positions_alone(self, length: int) -> int:
        """Return how many positions a request of this length takes if it is the only one."""
        return self._max_rows * size_class(length) if self._deterministic else whole_pages(length)

    def send_back(self, requests: list[SampleRequest]) -> None:
        """Queue requests again, in the order of arrival."""
        for request in requests:
            request.admitted_at = None
        self.queue = deque(sorted([*requests, *self.queue], key=age))

    def drop_canceled(self) -> None:
        """Remove requests that nobody waits for any more."""
        for batch in self.batches:
            for request in [request for request in batch.requests if request.future.cancelled()]:
                batch.remove(request)
        self.drop_empty()

    def drop_empty(self) -> None:
        """Remove batches without requests."""
        self.batches = [batch for batch in self.batches if batch.requests]

    def regroup(self) -> None:
        """Move requests that have outgrown their size class to a batch of the next.

        With a fixed shape each moves when it must. Otherwise a batch grows as a whole, and joins another where it can.
        """
        moved: list[tuple[SampleRequest, DecodeBatch, Tensor]] = []
        for batch in [batch for batch in self.batches if batch.longest > batch.size_class]:
            partner = None if self._deterministic else self._partner(batch)
            for request in list(batch.requests):
                if partner is None and (not self._deterministic or request.length <= batch.size_class):
                    continue
                kv_L_2_K_T_D = batch.read(request)
                batch.remove(request)
                target = partner or self._batch_for(request)
                target.join(request)
                moved.append((request, target, kv_L_2_K_T_D))
        if moved:
            self.drop_empty()
            self.make_room()
        for request, target, kv_L_2_K_T_D in moved:
            if request in target.requests:  # otherwise it was preempted
                target.write(request, kv_L_2_K_T_D)

    def _partner(self, batch: DecodeBatch) -> DecodeBatch | None:
        """Let a batch grow into the next size class, and return the batch there that it can join."""
        batch.size_class = size_class(batch.longest)
        max_rows = self._max_rows_each(len(self.batches) - 1) - len(batch.requests)
        others = [b for b in self.batches if b.size_class == batch.size_class and len(b.requests) <= max_rows]
        return next((other for other in others if other is not batch), None)

    def _max_rows_each(self, batches: int) -> int:
        """Return when a batch is full, with this many of them."""
        split = not self._deterministic and batches < self._workers
        return SPLIT_FROM_ROWS if split else self._max_rows

    def _batch_for(self, request: SampleRequest) -> DecodeBatch:
        """Return a batch of the right size class with room for a request."""
        needed, max_rows = size_class(request.length), self._max_rows_each(len(self.batches))
        batches = [b for b in self.batches if b.size_class == needed and len(b.requests) < max_rows]
        batches.sort(key=lambda batch: len(batch.requests))
        if batches:
            # Batches of equal size keep the workers busy. Where a step costs the same however few rows are used, the
            # fewest batches are best.
            return batches[-1 if self._deterministic else 0]
        self.batches.append(DecodeBatch(self._layout, needed, self._decode_step))
        return self.batches[-1]

    def make_room(self) -> None:
        """Allocate what the running requests need now. Cached prefixes, spare slots and the youngest give way to it."""
        while self.positions(tight=True) > self.budget and len(running := self.running()) > 1:
            youngest = max(running, key=age)
            next(batch for batch in self.batches if youngest in batch.requests).remove(youngest)
            self.drop_empty()
            self.send_back([youngest])
            self.preemptions += 1
        tight = self.positions(tight=False) > self.budget
        room = max(0, self.budget - self.positions(tight))
        self.prefix_cache.evict(min(room, int(PREFIX_SHARE * self.budget)))
        for batch in sorted(self.batches, key=lambda b: b.positions(tight) - b.slots.positions):  # shrink first
            batch.allocate(tight)

    def admit(self, max_tokens: int) -> list[Admitted]:
        """Admit requests from the queue, with at most about `max_tokens` to prefill, and return them.

        Requests that share a longer prefix with another of this round than with the prefix cache stay for the next.
        """
        prefilling: set[int] = set()
        later: list[SampleRequest] = []
        admitted: list[Admitted] = []
        running, tokens_ahead = len(self.running()), 0
        while self.queue and running + len(admitted) < self._max_batch and tokens_ahead < max_tokens:
            request = self.queue.popleft()
            if request.future.cancelled():
                continue
            if self._deterministic and request.tokens:
                request.restart()
            tokens = request.computed_tokens()
            cached = self.prefix_cache.lookup(tokens)
            hashes = self.prefix_cache.block_hashes(tokens)
            if len(hashes) > len(cached) and hashes[len(cached)] in prefilling:
                later.append(request)
                continue
            batch = self._batch_for(request)
            batch.join(request)
            if self.positions(tight=True, headroom=PAGE) > self.budget and running + len(admitted) > 0:
                batch.remove(request)
                later.append(request)
                break
            prefilling.update(hashes)
            admitted.append(
                Admitted(request, batch, cached, sum(block_L_2_K_T_D.shape[3] for block_L_2_K_T_D in cached))
            )
            tokens_ahead += len(tokens) - admitted[-1].start
        self.queue.extendleft(reversed(later))
        self.drop_empty()
        if admitted:
            self.make_room()
        return admitted


def age(request: SampleRequest) -> int:
    """Return its place in the order of arrival."""
    return request.number
