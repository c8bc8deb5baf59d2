"""Which requests are sampled now: the queue, the batches, and the pages of the KV cache that they may take.

Requests are admitted in the order of arrival while the budget has room for what they have and a page more. When those
that run have outgrown it, the youngest go back to the queue: so the oldest always ends, and then the next one is.
"""

from collections import deque
from typing import NamedTuple

from torch import Tensor

from ..memory_budget import PREFIX_SHARE
from .decoding import DecodeBatch, DecodeStep
from .kv_cache import PAGE, KVLayout, PrefixCache, size_class, whole_pages
from .requests import SampleRequest

SPLIT_FROM_ROWS = 32
"""When a batch has this many rows, further requests start another batch, as long as there are workers for it."""


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
        """Deal with requests that have outgrown the size class of their batch.

        A batch grows as a whole, and joins another of its new class where it can. With a fixed shape, each request
        moves when it must.
        """
        outgrown = [batch for batch in self.batches if batch.longest > batch.size_class]
        if not self._deterministic:
            for batch in outgrown:
                batch.size_class = size_class(batch.longest)
                self._merge(batch)
        elif outgrown:
            moved = [leaving for batch in outgrown for leaving in self._take_outgrown(batch)]
            outgrown.clear()  # from here on they do not take memory any more
            self.drop_empty()
            targets = []
            for request, _ in moved:
                targets.append(self._batch_for(request))
                targets[-1].join(request)
            self.make_room()
            for (request, kv_L_2_K_T_D), target in zip(moved, targets, strict=True):
                if request in target.requests:  # otherwise it was preempted
                    target.write(request, kv_L_2_K_T_D)

    def _take_outgrown(self, batch: DecodeBatch) -> list[tuple[SampleRequest, Tensor]]:
        """Remove the requests that are longer than the size class of a batch, and return their keys and values."""
        taken = []
        for request in [request for request in batch.requests if request.length > batch.size_class]:
            taken.append((request, batch.read(request)))
            batch.remove(request)
        return taken

    def _merge(self, batch: DecodeBatch) -> None:
        """Let another batch of the same size class absorb a batch, if it has the room."""
        max_rows = self._max_rows_each(len(self.batches) - 1) - len(batch.requests)
        for other in self.batches:
            if other is batch or other.size_class != batch.size_class or len(other.requests) > max_rows:
                continue
            together = (len(batch.requests) + len(other.requests)) * whole_pages(max(batch.longest, other.longest))
            apart = batch.slots.positions + other.slots.positions
            used = sum(batch.slots.positions for batch in self.batches) + self.prefix_cache.tokens
            if used + together - apart <= self.budget:
                other.absorb(batch)
                self.batches.remove(batch)
                return

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
        self.prefix_cache.limit(min(room, int(PREFIX_SHARE * self.budget)))
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
