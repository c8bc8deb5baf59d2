"""Any model behind an OpenAI-compatible server (vLLM, SGLang, llama.cpp, hosted ones): for teachers and evaluation.

Inference only. Such servers speak text, so tokens are the bytes of the text and log-probabilities are zeros: nothing
can be learned from them here. Limits, budgets and `work` count the server's own tokens; a reply whose server does not
say how many it has is estimated at BYTES_PER_TOKEN. What went wrong for a moment is a `BackendError`, which the caller
tries again; a wrong key, model or address is one line that says what to mend.

    async with OpenAIPolicy("Qwen/Qwen3-8B", "http://localhost:8000/v1") as policy:
        completion = await policy.sample(policy.tokenizer.encode_chat(messages), SamplingParams(4096))
"""

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Self, cast
from urllib.parse import urlsplit

from pydantic import BaseModel, Field, ValidationError

from ..calls import TooLong
from ..errors import MetaAgentXError
from ..policy import PAPER_LOSS, BackendError, Completion, Datum, LossName, LossOptions, Metrics, SamplingParams
from ..workflow.protocol import visible
from .scripted import ByteTokenizer

if TYPE_CHECKING:
    from openai import APIStatusError, AsyncOpenAI
    from openai.types.chat import ChatCompletionMessageParam

OPENAI_URL = "https://api.openai.com/v1"
BYTES_PER_TOKEN = 4
"""Of English text and code, with the tokenizers of today: the estimate where a server sends no usage."""
_CONNECT_SECONDS = 10.0
_LONGEST_PAUSE_SECONDS = 60.0
_SEEDS = 2**31  # some servers take 32 bits
_TOO_LONG = re.compile(r"context[ _](length|size|window)|too long", re.IGNORECASE)


class _Message(BaseModel):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _Choice(BaseModel):
    message: _Message
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    """vLLM: the stop text that ended the reply."""
    matched_stop: str | int | None = None
    """SGLang: the same."""


class _Usage(BaseModel):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _Body(BaseModel):
    """What we read of a server's reply."""

    choices: list[_Choice] = Field(min_length=1)
    usage: _Usage | None = None


@dataclass(frozen=True, slots=True)
class _Line:
    """The way to the server from one event loop."""

    client: "AsyncOpenAI"
    turns: asyncio.Semaphore


class OpenAIPolicy:
    """A model on a server. `aclose`, or the end of `async with`, closes the connections of the running event loop."""

    def __init__(
        self,
        model: str,
        base_url: str | None = None,
        api_key_env: str = "OPENAI_API_KEY",
        extra_body: Mapping[str, object] | None = None,
        max_concurrency: int = 32,
    ) -> None:
        """What the variable `api_key_env` holds is sent to `base_url`; a server of your own needs none.

        `extra_body` goes into every request as it is. Requests beyond `max_concurrency` wait their turn.
        """
        self.tokenizer = ByteTokenizer()
        self.context_length = sys.maxsize  # only the server knows its own, and `sample` says when it was too short
        self._model = model
        self._url = _checked_url(base_url or OPENAI_URL)
        self._key_env = api_key_env
        self._key = _read_key(api_key_env, needed=base_url is None)
        self._extra = _checked_body(extra_body or {})
        self._max_concurrency = max_concurrency
        self._length_name = "max_tokens"
        self._lines: dict[asyncio.AbstractEventLoop, _Line] = {}
        self._work = {"prompt_tokens": 0, "completion_tokens": 0, "requests": 0}
        _check_package()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections that were opened in this event loop."""
        if line := self._lines.pop(asyncio.get_running_loop(), None):
            await line.client.close()

    async def sample(self, prompt: Sequence[int], params: SamplingParams) -> Completion:
        """The server's reply. `max_tokens` and `token_count` are the server's tokens, the completion's are bytes.

        Reasoning that comes apart from the text is put before it, in `<think>`. Servers leave out the stop text that
        ended a reply; it is put back where the server says which one it was.
        """
        if params.stop_tokens:
            raise MetaAgentXError("the openai backend has no tokens to stop at, only texts: use `stop`")
        messages = [_to_send(message) for message in self.tokenizer.read_chat(prompt)]
        body = await self._ask(messages, params)
        if body.usage is not None:
            self._work["prompt_tokens"] += body.usage.prompt_tokens or 0
            self._work["completion_tokens"] += body.usage.completion_tokens or 0
        choice = body.choices[0]
        if choice.finish_reason in ("abort", "error"):
            raise BackendError(f"{self._name()} broke off its reply ({choice.finish_reason})")
        cut = choice.finish_reason == "length"
        text, stopped = _text(choice, cut, params.stop)
        tokens = self.tokenizer.encode_reply(text)
        if cut or stopped:
            tokens.pop()  # its turn did not end
        count = _count_tokens(body.usage, text)
        return Completion(tuple(tokens), (0.0,) * len(tokens), "length" if cut else "stop", count)

    async def forward_backward(
        self, data: Sequence[Datum], loss: LossName, options: LossOptions = PAPER_LOSS
    ) -> Metrics:
        """It cannot learn."""
        self._refuse_to_learn()

    async def optim_step(self, learning_rate: float) -> Metrics:
        """It cannot learn."""
        self._refuse_to_learn()

    async def save(self, path: Path) -> None:
        """It has nothing to keep."""

    async def load(self, path: Path) -> None:
        """It has nothing to keep."""

    def work(self) -> Metrics:
        """What was used so far: `prompt_tokens` and `completion_tokens` as the server counts them, and `requests`."""
        return dict(self._work)

    def _refuse_to_learn(self) -> NoReturn:
        raise MetaAgentXError(f"{self._name()} cannot learn, it can only be asked: train with the local backend")

    async def _ask(self, messages: Sequence[Mapping[str, str]], params: SamplingParams) -> _Body:
        from openai import APIConnectionError, APIStatusError

        async with self._line() as client:
            try:
                return await self._complete(client, messages, params)
            except APIConnectionError as error:
                reason = self._clean(str(error.__cause__ or "")) or type(error.__cause__).__name__
                raise BackendError(f"{self._url} cannot be reached: {reason}") from None
            except APIStatusError as error:
                await _pause(error)
                raise self._as_ours(error) from None

    async def _complete(
        self, client: "AsyncOpenAI", messages: Sequence[Mapping[str, str]], params: SamplingParams
    ) -> _Body:
        """Servers have two names for the length of a reply: the older one first, which more of them know."""
        from openai import BadRequestError

        older, newer = "max_tokens", "max_completion_tokens"
        if self._length_name == older:
            try:
                return await self._request(client, messages, params, older)
            except BadRequestError as error:
                if newer not in self._words(error):
                    raise
        body = await self._request(client, messages, params, newer)
        self._length_name = newer
        return body

    async def _request(
        self, client: "AsyncOpenAI", messages: Sequence[Mapping[str, str]], params: SamplingParams, length_name: str
    ) -> _Body:
        options: dict[str, object] = {length_name: params.max_tokens, "temperature": params.temperature}
        if params.seed is not None:
            options["seed"] = params.seed % _SEEDS
        if params.stop:
            options["stop"] = list(params.stop)
        self._work["requests"] += 1
        reply = await client.chat.completions.with_raw_response.create(
            model=self._model,
            messages=cast("list[ChatCompletionMessageParam]", messages),
            extra_body=options | self._extra,
        )
        try:
            return _Body.model_validate_json(reply.content)
        except ValidationError:
            start = self._clean(reply.content[:300].decode("utf-8", "replace"))
            raise BackendError(f"{self._name()} sent no chat completion, but {start!r}") from None

    @asynccontextmanager
    async def _line(self) -> "AsyncIterator[AsyncOpenAI]":
        """The client of the running event loop, when it is this request's turn."""
        from openai import AsyncOpenAI, Timeout

        loop = asyncio.get_running_loop()
        if loop not in self._lines:
            # The caller has deadlines and tries again: the client does neither, but for a host that is not there.
            timeout = Timeout(None, connect=_CONNECT_SECONDS)
            client = AsyncOpenAI(api_key=self._key or "none", base_url=self._url, timeout=timeout, max_retries=0)
            self._lines[loop] = _Line(client, asyncio.Semaphore(self._max_concurrency))
        line = self._lines[loop]
        async with line.turns:
            yield line.client

    def _as_ours(self, error: "APIStatusError") -> Exception:
        """What a refusal is to the caller. A request like no other may be at fault: most of them end no run."""
        status, words = error.status_code, self._words(error)
        key = f"the key in {self._key_env}" if self._key else f"no key, put one in {self._key_env}"
        if status == 401:  # its words repeat the key
            return MetaAgentXError(f"{self._name()} does not open (401) with {key}")
        if status == 403:
            return MetaAgentXError(f"{self._name()} may not be used (403) with {key}: {words}")
        if status == 404:
            fix = "check the model's name and that the address has its path, such as /v1"
            return MetaAgentXError(f"{self._name()} is not there (404), {fix}: {words}")
        if status in (400, 413, 422) and _TOO_LONG.search(words):
            return TooLong(f"{self._name()} has no room for the conversation: {words}")
        return BackendError(f"{self._name()} refuses ({status}): {words}")

    def _name(self) -> str:
        return f"{self._model!r} at {self._url}"

    def _words(self, error: "APIStatusError") -> str:
        """What the server said."""
        message = error.body.get("message") if isinstance(error.body, Mapping) else None
        return self._clean(message if isinstance(message, str) else error.response.text) or "no reason given"

    def _clean(self, text: str) -> str:
        """On one line, not long, and without the key, which servers like to repeat."""
        hidden = text.replace(self._key, "***") if self._key else text
        return " ".join(hidden.split())[:300]


def _to_send(message: Mapping[str, str]) -> Mapping[str, str]:
    """Servers do not want a model's earlier thinking back."""
    if message["role"] != "assistant":
        return message
    return {"role": "assistant", "content": visible(message["content"]).lstrip("\n")}


def _text(choice: _Choice, cut: bool, stops: Sequence[str]) -> tuple[str, bool]:
    """The whole reply, and whether a stop text is known to have ended it."""
    text = choice.message.content or ""
    stop = choice.stop_reason or choice.matched_stop
    stopped = isinstance(stop, str) and stop in stops
    if stopped and not text.endswith(str(stop)):
        text += str(stop)
    if reasoning := choice.message.reasoning_content or choice.message.reasoning:
        closed = "" if cut and not text else f"\n</think>\n\n{text}"
        text = f"<think>\n{reasoning}{closed}"
    return text, stopped


def _count_tokens(usage: _Usage | None, text: str) -> int:
    """The server's count of a reply, thinking included, or an estimate."""
    counted = usage.completion_tokens if usage is not None else None
    return counted if counted and counted > 0 else max(1, -(-len(text.encode()) // BYTES_PER_TOKEN))


async def _pause(error: "APIStatusError") -> None:
    """Wait as long as a busy server asks for, within reason, and keep the turn: fewer requests are what it wants."""
    wanted = error.response.headers.get("retry-after", "")
    if error.status_code in (429, 503) and wanted.isdecimal():
        await asyncio.sleep(min(float(wanted), _LONGEST_PAUSE_SECONDS))


def _checked_url(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise MetaAgentXError(f"{url!r} is no address of a server: write it like http://localhost:8000/v1")
    if parts.username is not None or parts.query:
        raise MetaAgentXError(f"the address of {parts.hostname} holds more than an address: put the key in a variable")
    return url.rstrip("/")


def _checked_body(extra: Mapping[str, object]) -> dict[str, object]:
    for key in ("messages", "model", "stream", "n"):
        if key in extra:
            raise MetaAgentXError(f"{key!r} cannot be in the extra body of a request: each request has its own")
    return dict(extra)


def _read_key(variable: str, needed: bool) -> str:
    key = os.environ.get(variable, "").strip()
    if needed and not key:
        raise MetaAgentXError(f"{OPENAI_URL} wants a key: put it in {variable}, or set the address of another server")
    if not (key.isascii() and key.isprintable()):
        raise MetaAgentXError(f"what {variable} holds is no key: it has characters that no key has")
    return key


def _check_package() -> None:
    try:
        import openai  # noqa: F401
    except ImportError:
        raise MetaAgentXError("the openai backend needs: pip install 'metaagentx[openai]'") from None
