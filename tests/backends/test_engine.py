"""The engine: whatever is batched, shared, evicted, moved or compiled, it draws what a plain forward pass would."""

import asyncio
import random
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest

import metaagentx.backends.local.threads  # noqa: F401  before torch

# isort: split
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from metaagentx.backends.chat import ChatTokenizer
from metaagentx.backends.local import LocalPolicy, attention, model_runner
from metaagentx.backends.local.decoding import DecodeBatch
from metaagentx.backends.local.engine import Engine
from metaagentx.backends.local.kv_cache import KVLayout, KVSlots, PrefixCache, whole_pages
from metaagentx.backends.local.model import LocalModel, LoraOptions
from metaagentx.backends.local.model_runner import NativeRunner, PrefillChunk, is_native
from metaagentx.backends.local.requests import SampleRequest, StopStrings
from metaagentx.backends.local.sampler import sample_tokens
from metaagentx.backends.local.transformers_runner import TransformersRunner
from metaagentx.errors import MetaAgentXError
from metaagentx.policy import BackendError, Completion, QueuesRequests, SamplingParams
from tests.backends.learners import VOCABULARY, chat_tokenizer, random_model

Ask = tuple[Sequence[int], SamplingParams]
END = 1


def model_of(kind: str, **changes: Any) -> LocalModel:
    """A few thousand weights with opinions: two layers, grouped key heads, room for 1,024 tokens."""
    shape = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 1024}
    return random_model(kind, torch.float32, **shape | changes)


def words(count: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(2, VOCABULARY), k=count)


def asks_of(lengths: Sequence[int], tokens: int = 20, **params: Any) -> list[Ask]:
    return [(words(length, n), SamplingParams(tokens, seed=n, **params)) for n, length in enumerate(lengths)]


def sample_all(engine: Engine, asks: Sequence[Ask], pauses: random.Random | None = None) -> list[Completion]:
    """All at once, or one after the other with pauses between them."""

    async def one(ask: Ask) -> Completion:
        await asyncio.sleep(pauses.random() / 20 if pauses else 0)
        return await engine.sample(*ask)

    async def everybody() -> list[Completion]:
        return await asyncio.gather(*map(one, asks))

    return asyncio.run(everybody())


def worst_difference(model: LocalModel, asks: Sequence[Ask], completions: Sequence[Completion]) -> float:
    """Between the log-probabilities that came with the samples and those of a full forward pass."""
    worst = 0.0
    for (prompt, params), completion in zip(asks, completions, strict=True):
        drawn = torch.tensor(completion.tokens)
        with torch.inference_mode():
            logits = model.module(input_ids=torch.tensor([[*prompt, *drawn.tolist()]])).logits[0, len(prompt) - 1 : -1]
        logprobs = (logits / (params.temperature or 1.0)).log_softmax(-1)
        told = torch.tensor(completion.logprobs)
        worst = max(worst, float((logprobs.gather(1, drawn[:, None])[:, 0] - told).abs().max()))
    return worst


def assert_right(model: LocalModel, asks: Sequence[Ask], completions: Sequence[Completion]) -> None:
    assert worst_difference(model, asks, completions) < 1e-4
    for (_, params), completion in zip(asks, completions, strict=True):
        assert len(completion.tokens) == len(completion.logprobs) <= params.max_tokens
        assert END not in completion.tokens[:-1]
        assert (completion.finish == "stop") == (completion.tokens[-1] == END)


QWEN = model_of("qwen3")
LLAMA = model_of("llama", attention_bias=True)
RAGGED = (1, 2, 3, 5, 40, 17, 130, 64, 65, 300, 16, 15)


@pytest.mark.parametrize("model", [QWEN, LLAMA], ids=["qwen3", "llama"])
@pytest.mark.parametrize("deterministic", [False, True])
def test_joined_batches_equal_a_plain_forward_pass(model: LocalModel, deterministic: bool) -> None:
    assert is_native(model.module)
    engine = Engine(model, compiled=False, deterministic=deterministic)
    asks = asks_of(RAGGED) + asks_of(RAGGED, temperature=0.6) + asks_of(RAGGED, temperature=0)
    assert_right(model, asks, sample_all(engine, asks))
    assert_right(model, asks, sample_all(engine, asks, random.Random(0)))


def test_sequences_that_outgrow_their_slots_move_on() -> None:
    asks = [(words(length, length), SamplingParams(200, seed=length)) for length in (100, 127, 128, 129, 250)]
    quiet = model_of("qwen3")
    quiet.tokenizer.end_tokens, ends = frozenset(), quiet.tokenizer.end_tokens
    try:
        for deterministic in (False, True):
            drawn = sample_all(Engine(quiet, compiled=False, deterministic=deterministic), asks)
            assert all(len(completion.tokens) == 200 for completion in drawn)
            assert worst_difference(quiet, asks, drawn) < 1e-4
    finally:
        quiet.tokenizer.end_tokens = ends


@pytest.mark.parametrize("deterministic", [False, True])
def test_shared_prefixes_equal_unshared_ones(deterministic: bool) -> None:
    base = words(200, 1)
    prompts = [base] * 6 + [base[:cut] + words(30, cut) for cut in (16, 17, 64, 128, 199)] + [base[:100]]
    asks = [(prompt, SamplingParams(12, seed=n)) for n, prompt in enumerate(prompts)]
    shared = Engine(QWEN, compiled=False, deterministic=deterministic)
    together = sample_all(shared, asks)
    assert_right(QWEN, asks, together)
    alone = [sample_all(Engine(QWEN, compiled=False, deterministic=deterministic), [ask])[0] for ask in asks]
    assert [c.tokens for c in alone] == [c.tokens for c in together]
    pairs = enumerate(zip(asks, together, strict=True))
    turns = [([*ask[0], *drawn.tokens, *words(9, n)], ask[1]) for n, (ask, drawn) in pairs]
    assert_right(QWEN, turns, sample_all(shared, turns))


@pytest.mark.parametrize("model", [QWEN, LLAMA], ids=["qwen3", "llama"])
def test_a_long_common_beginning_is_attended_to_once_for_all_rows(
    model: LocalModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[int] = []
    attend = attention.attend_shared
    monkeypatch.setattr(model_runner, "attend_shared", lambda *of: used.append(of[-1]) or attend(*of))  # type: ignore[func-returns-value]
    start = words(150, 1)
    asks = [([*start, *words(n, n + 2)], SamplingParams(12 + n, seed=n)) for n in range(6)]
    assert_right(model, asks, sample_all(Engine(model, compiled=False), asks))
    assert min(used) == 149, "while the shortest is there, its last token is still to be read"


def tokens_read(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tokens each pass over prompts reads from now on."""
    read: list[int] = []
    prefill = engine._runner.prefill

    def counting(slots: KVSlots, chunks: Sequence[PrefillChunk]) -> None:
        read.append(sum(len(chunk.tokens) for chunk in chunks))
        prefill(slots, chunks)

    monkeypatch.setattr(engine._runner, "prefill", counting)
    return read


def test_prompts_that_begin_alike_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(QWEN, compiled=False)
    read = tokens_read(engine, monkeypatch)
    base = words(161, 1)
    sample_all(engine, [(base, SamplingParams(3, seed=n)) for n in range(8)])
    assert sum(read) == 160
    read.clear()
    sample_all(engine, [([*base, *words(10, 2)], SamplingParams(3, seed=1))])
    assert sum(read) == 10


def test_equal_prompts_are_read_once_in_the_deterministic_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(QWEN, deterministic=True)
    read = tokens_read(engine, monkeypatch)
    asks = [(words(90, 1), SamplingParams(8, seed=n)) for n in range(6)]
    together = sample_all(engine, asks)
    assert sum(read) == 89, "the last token is read by the first step"
    assert [sample_all(Engine(QWEN, deterministic=True), [ask])[0] for ask in asks] == together


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([False, True]))
def test_draws_do_not_depend_on_who_else_is_there(seed: int, deterministic: bool) -> None:
    chance = random.Random(seed)
    asks = asks_of([chance.randrange(1, 90) for _ in range(chance.randrange(1, 9))], tokens=6)
    together = sample_all(Engine(QWEN, compiled=False, deterministic=deterministic), asks)
    chosen = chance.randrange(len(asks))
    (alone,) = sample_all(Engine(QWEN, compiled=False, deterministic=deterministic), [asks[chosen]])
    assert alone.tokens == together[chosen].tokens
    assert not deterministic or alone == together[chosen]


def test_the_deterministic_mode_gives_the_same_bits_in_any_order_of_arrival() -> None:
    base = words(150, 3)
    asks = asks_of([3, 40, 70, 130, 200] * 8, tokens=15) + [(base, SamplingParams(15, seed=n)) for n in range(5)]
    first = sample_all(Engine(QWEN, deterministic=True), asks)
    for attempt in range(2):
        chance = random.Random(attempt)
        order = chance.sample(range(len(asks)), len(asks))
        engine = Engine(QWEN, deterministic=True, kv_budget_tokens=(8192, 1 << 20)[attempt])
        again = sample_all(engine, [asks[n] for n in order], chance)
        assert [first[n] for n in order] == again


def test_a_traced_step_has_the_bits_of_its_operations_one_by_one_also_with_new_weights() -> None:
    model = model_of("qwen3")
    asks = [*asks_of([3, 70, 120], temperature=0.7), *asks_of([200], temperature=0)]
    traced, plain = (Engine(model, deterministic=True, deterministic_rows=4) for _ in range(2))
    assert isinstance(plain._runner, NativeRunner)
    plain._runner.traceable = False
    first = sample_all(traced, asks)
    assert first == sample_all(plain, asks)
    assert traced._decode_step._traced and not plain._decode_step._traced
    with torch.no_grad():
        for weight in model.module.parameters():
            weight.mul_(1.1)
    model.version += 1
    second = sample_all(traced, asks)
    assert second == sample_all(plain, asks) != first
    assert worst_difference(model, asks, second) < 1e-4


def test_without_seeds_the_deterministic_mode_repeats_itself_and_samples_differ() -> None:
    asks = [(words(20, 1), SamplingParams(10))] * 4
    runs = [sample_all(Engine(QWEN, deterministic=True), asks) for _ in range(2)]
    assert runs[0] == runs[1]
    assert len({completion.tokens for completion in runs[0]}) == 4


def test_a_tiny_budget_evicts_and_queues_and_is_still_right() -> None:
    engine = Engine(QWEN, kv_budget_tokens=512, compiled=False)
    asks = asks_of([100, 10, 200, 60, 100, 250] * 3) + asks_of([250] * 4)
    assert_right(QWEN, asks, sample_all(engine, asks))
    assert engine._prefix_cache.tokens <= 512
    with pytest.raises(
        MetaAgentXError, match=r"takes 640 positions of the KV cache, and model\.kv_budget_tokens is 512"
    ):
        sample_all(engine, [(words(500, 1), SamplingParams(100))])


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_slots_hold_each_sequence_once_and_are_all_freed(data: st.DataObject) -> None:
    """Sequences join, grow and leave in any order. Each keeps its own keys and values, in the pages that it needs."""
    engine = Engine(QWEN, compiled=False)
    batch = DecodeBatch(KVLayout(1, 1, 1, torch.float32, torch.device("cpu")), 128, engine._decode_step)

    def contents(request: SampleRequest) -> torch.Tensor:
        return (request.number * 1000 + torch.arange(request.length - 1.0)).expand(1, 2, 1, -1)[..., None]

    for number in range(data.draw(st.integers(1, 25))):
        tight = data.draw(st.booleans())
        match data.draw(st.sampled_from(["join", "grow", "leave"])) if batch.requests else "join":
            case "join":
                request = engine._make_request(tuple(words(data.draw(st.integers(1, 150)), 1)), SamplingParams(500))
                request.number = number
                batch.join(request)
                batch.allocate(tight)
                batch.write(request, contents(request))
            case "grow":
                steps = data.draw(st.integers(1, 70))
                for request in batch.requests:
                    request.tokens += [3] * steps
                batch.longest += steps
                batch.allocate(tight)
                for request in batch.requests:
                    batch.write(request, contents(request))
            case _:
                batch.remove(data.draw(st.sampled_from(batch.requests)))
                batch.allocate(tight)
        for request in batch.requests:
            assert torch.equal(batch.read(request), contents(request))
        longest = max((request.length for request in batch.requests), default=0)
        assert batch.longest == longest
        assert batch.slots.positions >= len(batch.requests) * longest
        if tight:
            assert batch.slots.positions == len(batch.requests) * whole_pages(longest)
    while batch.requests:
        batch.remove(batch.requests[0])
    batch.allocate(tight=True)
    assert batch.slots.positions == 0


def watch_memory(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many requests run in each step from now on, each of which is checked against the budget."""
    running: list[int] = []
    step = engine._workers.step

    def checking(batches: Sequence[DecodeBatch]) -> list[list[SampleRequest]]:
        running.append(sum(len(batch.requests) for batch in batches))
        assert sum(batch.slots.positions for batch in batches) + engine._prefix_cache.tokens <= engine._scheduler.budget
        return step(batches)

    monkeypatch.setattr(engine._workers, "step", checking)
    return running


QUIET = model_of("qwen3")
QUIET.tokenizer = ChatTokenizer(QUIET.tokenizer.hf)
QUIET.tokenizer.end_tokens = frozenset()


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**32), st.integers(5, 12))
def test_no_budget_is_exceeded_and_preempted_requests_draw_the_same(seed: int, pages: int) -> None:
    chance = random.Random(seed)
    lengths = [chance.choice([5, 60, 150]) for _ in range(chance.randrange(2, 9))]
    asks = asks_of(lengths, tokens=chance.choice([20, 150]), temperature=chance.choice([0, 1]))
    roomy = sample_all(Engine(QUIET, compiled=False), asks)
    engine = Engine(QUIET, compiled=False, kv_budget_tokens=pages * 64)
    with pytest.MonkeyPatch.context() as patch:
        watch_memory(engine, patch)
        tight = sample_all(engine, asks)
    assert [completion.tokens for completion in tight] == [completion.tokens for completion in roomy]
    assert worst_difference(QUIET, asks, tight) < 1e-4
    assert not engine._scheduler.batches and not engine._scheduler.queue


@pytest.mark.parametrize("deterministic", [False, True])
def test_the_youngest_are_preempted_and_draw_the_same(deterministic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asks = asks_of([20] * 6, tokens=300)
    options: dict[str, Any] = {"compiled": False, "deterministic": deterministic, "deterministic_rows": 4}
    roomy = sample_all(Engine(QUIET, **options), asks)
    engine = Engine(QUIET, **options, kv_budget_tokens=4 * 512 if deterministic else 1024)
    running = watch_memory(engine, monkeypatch)
    send_back = engine._scheduler.send_back

    def checking(requests: list[SampleRequest]) -> None:
        left = [request.number for request in engine._scheduler.running()]
        assert all(request.number > max(left) for request in requests), "the oldest stay"
        send_back(requests)

    monkeypatch.setattr(engine._scheduler, "send_back", checking)
    tight = sample_all(engine, asks)
    assert max(running) == 6 and engine.stats()["preemptions"] > 0
    assert [completion.tokens for completion in tight] == [completion.tokens for completion in roomy]
    assert not deterministic or tight == roomy, "to the bit: a preempted request starts over"
    assert worst_difference(QUIET, asks, tight) < 1e-4


@pytest.mark.parametrize("budget_gib", [1, 4])
def test_sixty_four_long_requests_start_together(budget_gib: int) -> None:
    """With the keys and values of SmolLM2-135M. Room for 2,148 positions each would be room for 10 or 43 of them."""
    model = model_of(
        "llama", hidden_size=24, num_hidden_layers=30, num_attention_heads=3, num_key_value_heads=3, head_dim=64
    )
    model.context_length, model.tokenizer = 8192, QUIET.tokenizer
    engine = Engine(model, compiled=False, kv_budget_tokens=(budget_gib << 30) // 46080)
    assert engine._runner.layout.bytes_per_token == 46080

    async def most_at_once() -> int:
        asked = [asyncio.create_task(engine.sample(words(100, n), SamplingParams(2048, seed=n))) for n in range(64)]
        while engine.stats()["sampled_tokens"] < 400:
            await asyncio.sleep(0.01)
        most = len(engine._scheduler.running())
        for ask in asked:
            ask.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
        return most

    assert asyncio.run(most_at_once()) == 64


def test_waiting_for_room_is_no_delay_of_the_backend() -> None:
    """All together take far longer than the deadline, which each has for itself."""
    policy = LocalPolicy(QUIET, "executor", Engine(QUIET, compiled=False, max_batch=1))
    params = SamplingParams(50, seed=1)

    async def sample_in_line() -> list[Completion]:
        started = time.perf_counter()
        await policy.sample(words(20, 1), params)
        alone = time.perf_counter() - started
        return await asyncio.gather(*(policy.sample_within(12 * alone, words(20, n), params) for n in range(40)))

    assert isinstance(policy, QueuesRequests)
    assert len(asyncio.run(sample_in_line())) == 40


def test_a_request_that_takes_too_long_and_a_queue_that_does_not_move_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(QUIET, compiled=False, max_batch=1)

    async def both() -> list[Completion | BaseException]:
        asks = (engine.sample(words(20, n), SamplingParams(900), 0.3) for n in range(2))
        return await asyncio.gather(*asks, return_exceptions=True)

    with monkeypatch.context() as slow:
        decode = engine._runner.decode
        slow.setattr(engine._runner, "decode", lambda *of: time.sleep(0.002) or decode(*of))  # type: ignore[func-returns-value]
        started = time.perf_counter()
        assert [type(result) for result in asyncio.run(both())] == [TimeoutError, TimeoutError]
        assert time.perf_counter() - started > 0.6, "the second had its own time"
    released = threading.Event()
    with monkeypatch.context() as hanging:
        hanging.setattr(engine._runner, "decode", lambda *_: released.wait(60) and 1 / 0)
        started = time.perf_counter()
        assert [type(result) for result in asyncio.run(both())] == [TimeoutError, TimeoutError]
        assert time.perf_counter() - started < 30
        released.set()
        asyncio.run(QUIET.run(lambda: None))
    assert sample_all(engine, asks_of([5]))


def test_memory_that_runs_out_halves_what_runs_at_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asks = asks_of([20] * 9, tokens=40)
    roomy = sample_all(Engine(QUIET, compiled=False), asks)
    engine, rows = Engine(QUIET, compiled=False), [0]
    decode, most = engine._runner.decode, 3

    def limited(slots: KVSlots, tokens: torch.Tensor, *rest: Any) -> torch.Tensor:
        if len(tokens) > most:
            raise MemoryError
        rows.append(len(tokens))
        return decode(slots, tokens, *rest)

    monkeypatch.setattr(engine._runner, "decode", limited)
    tight = sample_all(engine, asks)
    assert [completion.tokens for completion in tight] == [completion.tokens for completion in roomy]
    assert 1 < max(rows) <= 3
    warnings = [record.getMessage() for record in caplog.records if "out of memory" in record.getMessage()]
    assert warnings[0].startswith("out of memory while sampling, with 9 requests of 576 positions: continuing with at ")
    assert len(warnings) == 1
    most = 0
    with pytest.raises(MetaAgentXError, match=r"^out of memory while sampling a single request, at 20 tokens: use a "):
        sample_all(engine, asks[:1])
    most = 3
    assert sample_all(engine, asks[:2]) == tight[:2]


def test_a_small_batch_queues() -> None:
    asks = asks_of([5] * 9)
    assert_right(QWEN, asks, sample_all(Engine(QWEN, max_batch=2, compiled=False), asks))


@pytest.mark.parametrize("deterministic", [False, True])
def test_batches_side_by_side_equal_a_plain_forward_pass(deterministic: bool) -> None:
    engine = Engine(QWEN, compiled=False, deterministic=deterministic, deterministic_rows=8)
    asks = asks_of([3, 30, 90, 140] * 24, tokens=12)
    assert_right(QWEN, asks, sample_all(engine, asks))


def test_new_weights_are_used_at_once_and_by_requests_under_way() -> None:
    model = model_of("qwen3")
    engine = Engine(model, compiled=False)
    asks = asks_of([40, 80, 20])
    before = sample_all(engine, asks)

    def train() -> None:
        with torch.no_grad():
            for weight in model.module.parameters():
                weight.mul_(0.8)
        model.weights_changed()

    asyncio.run(model.run(train))
    after = sample_all(engine, asks)
    assert_right(model, asks, after)
    assert [c.logprobs for c in after] != [c.logprobs for c in before]

    async def train_meanwhile() -> Completion:
        long = asyncio.create_task(engine.sample(words(30, 7), SamplingParams(600, seed=3, temperature=1.5)))
        await asyncio.sleep(0.01)
        await model.run(train)
        return await long

    completion = asyncio.run(train_meanwhile())
    assert len(completion.tokens) == len(completion.logprobs)


def test_stop_tokens_and_the_end_of_the_turn_are_part_of_the_completion() -> None:
    (free,) = sample_all(Engine(QWEN), [(words(9, 9), SamplingParams(20, seed=5))])
    stop = free.tokens[4]
    (stopped,) = sample_all(Engine(QWEN), [(words(9, 9), SamplingParams(20, seed=5, stop_tokens=(stop,)))])
    assert stopped.tokens == free.tokens[: free.tokens.index(stop) + 1]
    assert stopped.finish == "stop"
    (short,) = sample_all(Engine(QWEN), [(words(9, 9), SamplingParams(2, seed=5))])
    assert (short.tokens, short.finish) == (free.tokens[:2], "length")


@given(st.text(st.sampled_from("ab <>/é\n"), min_size=1, max_size=5), st.integers(0, 2**32))
def test_stop_texts_end_a_completion_however_they_are_cut(stop: str, seed: int) -> None:
    tokenizer = chat_tokenizer()
    pieces = ["<", "/", "a", "b", ">", " ", "é", "\n", "<delivery>", "</delivery>", " a"]
    known = [token for piece in pieces for token in tokenizer.hf.encode(piece, add_special_tokens=False)]
    tokens = random.Random(seed).choices(known, k=40)
    stops = StopStrings((stop, "never this"), tokenizer)
    ended = [count for count in range(1, 41) if stop in tokenizer.decode(tokens[:count])]
    found = [count for count in range(1, 41) if stops.matches(tokens[:count])]
    assert found[:1] == ended[:1]


def test_a_stop_text_ends_a_sample() -> None:
    model = model_of("qwen3", vocab_size=1024)
    (free,) = sample_all(Engine(model), [(words(9, 9), SamplingParams(20, seed=5))])
    text = model.tokenizer.decode(free.tokens[3:5])
    (stopped,) = sample_all(Engine(model), [(words(9, 9), SamplingParams(20, seed=5, stop=(text,)))])
    assert stopped.finish == "stop"
    assert model.tokenizer.decode(stopped.tokens).endswith(text)
    assert stopped.tokens == free.tokens[: len(stopped.tokens)]


def test_tokens_are_drawn_as_often_as_they_should_be() -> None:
    logits = torch.randn(1, 8, generator=torch.Generator().manual_seed(0)).expand(40_000, 8)
    chances = torch.rand(40_000, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    tokens, logprobs = sample_tokens(logits, torch.full((40_000,), 0.7), chances)
    expected = (logits[0] / 0.7).softmax(-1)
    assert ((tokens.long().bincount(minlength=8) / 40_000) - expected).abs().max() < 0.01
    torch.testing.assert_close(logprobs.float(), expected.log()[tokens.long()])
    impossible = torch.tensor([[float("-inf"), 0.0, float("-inf")]] * 2)
    ends = torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64)
    assert sample_tokens(impossible, torch.ones(2), ends)[0].tolist() == [1, 1]


def test_a_cancelled_request_leaves_and_the_others_go_on() -> None:
    engine = Engine(QWEN, compiled=False)
    ask = (words(9, 9), SamplingParams(900, seed=5))

    async def cancel_one() -> Completion:
        gone = asyncio.create_task(engine.sample(*ask))
        await asyncio.sleep(0.01)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        completion = await engine.sample(words(9, 8), SamplingParams(5, seed=1))
        for _ in range(2):  # the turn in which it was canceled, and the next
            await QWEN.run(lambda: None)
        return completion

    assert asyncio.run(cancel_one()).tokens
    assert not engine._scheduler.batches


def test_requests_that_cannot_be_are_told() -> None:
    engine = Engine(QWEN)
    for prompt, params, problem in (
        (words(1024, 1), SamplingParams(5), "prompt has 1024 tokens, and the model's context of 1024 leaves"),
        ([], SamplingParams(5), "one or more tokens from 0 to 23"),
        ([99], SamplingParams(5), "one or more tokens from 0 to 23"),
        ([3], SamplingParams(0), "max_tokens must be >= 1"),
    ):
        with pytest.raises(MetaAgentXError, match=problem):
            sample_all(engine, [(prompt, params)])
    (cut,) = sample_all(engine, [(words(1020, 1), SamplingParams(50, seed=1, temperature=0))])
    assert len(cut.tokens) <= 4


def test_a_failing_step_reaches_those_who_wait_and_the_engine_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(QWEN, compiled=False)
    with monkeypatch.context() as patch:
        patch.setattr(engine._runner, "decode", lambda *_: 1 / 0)
        with pytest.raises(
            BackendError, match=r"^sampling failed: ZeroDivisionError in test_engine\.py:\d+: division by zero$"
        ):
            sample_all(engine, asks_of([4, 5]))
    assert_right(QWEN, asks_of([4, 5]), sample_all(engine, asks_of([4, 5])))


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_failing_read_reaches_all_who_wait(deterministic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(QWEN, compiled=False, deterministic=deterministic)

    def fails(slots: KVSlots, chunks: Sequence[PrefillChunk]) -> None:
        raise RuntimeError("the read failed")

    async def ask() -> list[Completion | BaseException]:
        asks = [engine.sample(words(70, 1), SamplingParams(4, seed=n)) for n in range(6)]
        return await asyncio.wait_for(asyncio.gather(*asks, return_exceptions=True), timeout=30)

    with monkeypatch.context() as broken:
        broken.setattr(engine._runner, "prefill", fails)
        failures = asyncio.run(ask())
        assert {type(error) for error in failures} == {BackendError}
        assert all(str(error).endswith(": the read failed") for error in failures)
    assert all(isinstance(completion, Completion) for completion in asyncio.run(ask()))


def with_loras(kind: str, **changes: Any) -> tuple[LocalModel, LocalModel, LocalModel]:
    """A base and two LoRAs on it, which say something else each."""
    base = model_of(kind, **changes)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        designer = base.with_adapter("designer", LoraOptions(rank=2))
        executor = base.with_adapter("executor", LoraOptions(rank=2, targets=("q_proj", "down_proj")))
    with torch.no_grad():
        for number, (name, weight) in enumerate(base.module.named_parameters()):
            if "lora_B" in name:
                weight.normal_(generator=torch.Generator().manual_seed(number)).mul_(0.03)
    return base, designer, executor


def assert_each_with_its_own(models: Sequence[LocalModel], engines: Sequence[Engine]) -> None:
    drawn = []
    for model, engine in zip(models, engines, strict=True):
        asks = asks_of([5, 30])
        drawn.append(sample_all(engine, asks))
        assert model.submit(partial(worst_difference, model, asks, drawn[-1])).result() < 1e-4
    assert len({completions[0].logprobs for completions in drawn}) == len(models)


@pytest.mark.parametrize("kind", ["qwen3", "llama"])
def test_loras_on_one_base_are_sampled_each_with_its_own(kind: str) -> None:
    models = with_loras(kind)
    assert_each_with_its_own(models, [Engine(model, compiled=False) for model in models])


def test_a_step_has_its_own_lora_whichever_peft_has_switched_on() -> None:
    """What a compiler relies on: always the same operations on the same tensors."""
    base, designer, _ = with_loras("qwen3")
    runner, slots = NativeRunner(designer), KVSlots(KVLayout(2, 2, 8, torch.float32, torch.device("cpu")), 1, 128)
    logits = []
    for adapter in ("designer", "executor"):
        base.module.set_adapter(adapter)
        with torch.inference_mode():
            logits.append(runner.decode(slots, torch.tensor([5]), torch.tensor([0]), 1))
    assert torch.equal(*logits)


@pytest.mark.slow
def test_a_compiled_step_with_a_lora_is_traced_once_however_often_peft_changes_adapters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only traced, not translated into machine code: that is done by the slow test below."""
    from torch._dynamo.utils import counters

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    _, *roles = with_loras("qwen3", num_hidden_layers=1)
    engines = [Engine(role, compiled=True) for role in roles]
    graphs = counters["stats"]["unique_graphs"]
    for _ in range(2):
        assert_each_with_its_own(roles, engines)
        for role in roles:
            role.submit(role.weights_changed).result()
    assert counters["stats"]["unique_graphs"] - graphs <= len(roles)
    models = [model_of("qwen3", num_hidden_layers=1, intermediate_size=32 + n) for n in range(9)]
    assert all(sample_all(Engine(model, compiled=True), asks_of([5, 7])) for model in models)


def test_compiling_what_cannot_be_compiled_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    other = model_of("llama", hidden_act="gelu")
    with pytest.raises(
        MetaAgentXError, match=r"^model\.compiled = true: only models that our own forward pass decodes"
    ):
        Engine(other, compiled=True)
    assert sample_all(Engine(other, compiled="auto"), asks_of([4]))
    monkeypatch.setenv("PATH", "")
    with pytest.raises(MetaAgentXError, match=r"g\+\+ was not found; set model\.compiled to \"auto\" or false$"):
        Engine(QWEN, compiled=True)


@pytest.mark.parametrize("kind", ["qwen2", "gpt2", "mistral"])
def test_other_architectures_are_sampled_through_transformers(kind: str) -> None:
    from transformers import AutoModelForCausalLM, GPT2Config, MistralConfig, Qwen2Config

    common: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "bos_token_id": None,
        "eos_token_id": None,
        "initializer_range": 0.3,
    }
    shape: dict[str, Any] = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    wide: dict[str, Any] = shape | {"num_key_value_heads": 2, "max_position_embeddings": 1024}
    configs: dict[str, Callable[[], Any]] = {
        "qwen2": lambda: Qwen2Config(**common, **wide),
        "gpt2": lambda: GPT2Config(**common, n_embd=16, n_layer=2, n_head=4, n_positions=1024),
        "mistral": lambda: MistralConfig(**common, **wide, sliding_window=24),
    }
    config = configs[kind]()
    torch.manual_seed(0)
    module = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()
    model = LocalModel(module, chat_tokenizer(), torch.device("cpu"), torch.float32, 1024)
    assert not is_native(module)
    asks = asks_of([1, 2, 40, 17, 130, 40])
    assert_right(model, asks, sample_all(Engine(model), asks))


def test_our_runner_and_that_of_transformers_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    asks = asks_of(RAGGED)
    monkeypatch.setattr("metaagentx.backends.local.engine.is_native", lambda _: False)
    engine = Engine(QWEN)
    assert isinstance(engine._runner, TransformersRunner)
    monkeypatch.undo()
    theirs, ours = sample_all(engine, asks), sample_all(Engine(QWEN), asks)
    assert [c.tokens for c in theirs] == [c.tokens for c in ours]


@pytest.mark.parametrize(("deterministic", "chosen"), [(True, 3), (False, 1)])
def test_batches_are_filled_or_kept_even(deterministic: bool, chosen: int) -> None:
    engine = Engine(QWEN, compiled=False, deterministic=deterministic, deterministic_rows=4)
    for count in (1, 3, 4):
        engine._scheduler.batches.append(DecodeBatch(engine._runner.layout, 128, engine._decode_step))
        for number in range(count):
            engine._scheduler.batches[-1].join(engine._make_request(tuple(words(9, number)), SamplingParams(2)))
    assert (
        len(engine._scheduler._batch_for(engine._make_request(tuple(words(9, 7)), SamplingParams(2))).requests)
        == chosen
    )


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 1), max_size=9), max_size=12), st.integers(0, 20), st.booleans())
def test_the_prefix_cache_keeps_the_longest_prefixes(sequences: list[list[int]], room: int, tails: bool) -> None:
    cache = PrefixCache(2, tails)
    for tokens in sequences:
        count = (len(tokens) + tails) // 2
        kv = torch.tensor(tokens, dtype=torch.float32).view(1, 1, 1, -1, 1)
        cache.limit(100)
        cache.add(tokens, kv)
        found = cache.lookup(tokens)
        assert len(found) == count
        assert [int(n) for block in found for n in block.flatten()] == tokens[: 2 * len(found)]
        cache.limit(room)
        assert cache.tokens <= room
        kept = cache.lookup(tokens)
        assert len(kept) == min(count, room // 2)


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("g++"), reason="compiling needs a C++ compiler")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch about itself
@pytest.mark.parametrize("model", [QWEN, LLAMA], ids=["qwen3", "llama"])
def test_the_compiled_path_equals_a_plain_forward_pass(model: LocalModel) -> None:
    from torch._dynamo.utils import counters

    graphs = counters["stats"]["unique_graphs"]
    engine = Engine(model, compiled=True, max_batch=4)
    asks = asks_of((3, 50, 120, 10)) + asks_of((30, 300), temperature=0.6)
    assert_right(model, asks, sample_all(engine, asks))
    lone = asks_of((7,))
    assert_right(model, lone, sample_all(engine, lone))
    asyncio.run(model.run(model.weights_changed))
    assert_right(model, lone, sample_all(engine, lone))
    assert counters["stats"]["unique_graphs"] - graphs <= 2  # with greedy requests and without


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("g++"), reason="compiling needs a C++ compiler")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch about itself
@pytest.mark.parametrize("kind", ["qwen3", "llama"])
def test_compiled_loras_draw_what_uncompiled_ones_do(kind: str) -> None:
    _, *roles = with_loras(kind)
    engines = [Engine(role, compiled=True) for role in roles]
    for role, engine in zip(roles, engines, strict=True):
        asks = asks_of((3, 50, 120, 10)) + asks_of((30, 300), temperature=0.6)
        plain = sample_all(Engine(role, compiled=False), asks)
        assert [c.tokens for c in sample_all(engine, asks)] == [c.tokens for c in plain]
    assert_each_with_its_own(roles, engines)
    with torch.no_grad():
        for name, weight in roles[0].module.named_parameters():
            if "lora_B.designer" in name:
                weight.mul_(-1.0)
    roles[0].submit(roles[0].weights_changed).result()
    assert_each_with_its_own(roles, engines)
