"""A chat model behind an OpenAI-compatible server (vLLM, SGLang, llama.cpp, hosted): for teachers and evaluation.

Messages in, text and token usage out; nothing can be trained here. Limits, budgets and `stats` count the server's own
tokens; a reply whose server sends no usage is estimated at BYTES_PER_TOKEN. A request that a busy server rejects is
sent again for `retry_seconds`. What may pass later is a `BackendError`, which the caller retries. A conversation that
the server refuses, while it answers a greeting with the same settings, is `PromptRejected`. A wrong key, model or URL
is a `MetaAgentXError` that says what to fix.

    async with OpenAIChatModel("Qwen/Qwen3-8B", "http://localhost:8000/v1") as model:
        reply = await model.chat(messages, SamplingParams(4096))
"""

import asyncio
import json
import os
import random
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self, cast
from urllib.parse import urlsplit

from pydantic import ValidationError

from ..errors import MetaAgentXError
from ..policy import BackendError, ChatReply, ContextOverflow, Messages, Metrics, PromptRejected, SamplingParams
from ..workflow.protocol import visible
from .openai_responses import (
    CONTEXT_OVERFLOW,
    ChatCompletion,
    ModelList,
    ServedModel,
    Usage,
    read_logprobs,
    read_token_ids,
    reply_room,
    reply_text,
    requested_pause,
)

if TYPE_CHECKING:
    from openai import APIStatusError, AsyncOpenAI
    from openai.types.chat import ChatCompletionMessageParam

OPENAI_URL = "https://api.openai.com/v1"
BYTES_PER_TOKEN = 4
"""Estimate for English text and code with current tokenizers, used where a server sends no usage."""
_CONNECT_SECONDS = 10.0
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.5, 20.0
_BUSY = {408, 409, 425, 429, *range(500, 600)}
"""Statuses after which the same request may succeed."""
_INVALID = {400, 413, 422}
"""Statuses of a request that the server does not accept."""
_GREETING = ({"role": "system", "content": "Answer in one word."}, {"role": "user", "content": "Hello"})
"""A conversation of the same roles as those of Designer and Executor."""
_SEEDS = 2**31  # some servers take 32 bits
_PROBE_TOKENS = 16
_SHOWN_NAMES = 5


class OpenAIChatModel:
    """A model on a server. `aclose`, or the end of `async with`, closes the connections of the running event loop."""

    def __init__(
        self,
        model: str,
        base_url: str | None = None,
        api_key_env: str = "OPENAI_API_KEY",
        extra_body: Mapping[str, object] | None = None,
        max_concurrency: int = 32,
        retry_seconds: float = 60.0,
    ) -> None:
        """Check the URL, the key and the package; nothing is sent yet.

        The key is read from the environment variable `api_key_env`; your own server (`base_url`) needs none.
        `extra_body` is merged into every request. Requests beyond `max_concurrency` wait. A request that a busy server
        rejects is sent again until `retry_seconds` after it was first rejected.
        """
        self._model = model
        self._url = _check_url(base_url or OPENAI_URL)
        self._key_env = api_key_env
        self._key = _read_key(api_key_env, required=base_url is None)
        self._extra_body = dict(extra_body or {})
        if reserved := sorted({"messages", "model", "stream", "n"} & self._extra_body.keys()):
            raise MetaAgentXError(f"invalid key {reserved[0]!r} in extra_body: each request sets it itself, remove it")
        self._max_concurrency = max_concurrency
        self._retry_seconds = retry_seconds
        self._answered = False
        self._max_tokens_key = "max_tokens"
        self._connections: dict[asyncio.AbstractEventLoop, tuple[AsyncOpenAI, asyncio.Semaphore]] = {}
        self._stats = {"prompt_tokens": 0, "completion_tokens": 0, "requests": 0}
        try:
            import openai  # noqa: F401
        except ImportError:
            raise MetaAgentXError("the openai backend needs: pip install 'metaagentx[openai]'") from None

    @classmethod
    def from_options(
        cls, model: str, base_url: str | None, key_env: str | None, extra_body: str | None, **limits: Any
    ) -> Self:
        """Return the model that the options of a command describe: `--api-key-env` and `--extra-body`, or None."""
        if key_env is not None and not os.environ.get(key_env, "").strip():
            raise MetaAgentXError(f"--api-key-env {key_env}: this variable is not set or empty: put the key in it")
        return cls(model, base_url, key_env or "OPENAI_API_KEY", parse_extra_body(extra_body), **limits)

    def __str__(self) -> str:
        return f"{self._model!r} at {self._url}"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections that were opened in this event loop."""
        if connection := self._connections.pop(asyncio.get_running_loop(), None):
            await connection[0].close()

    def stats(self) -> Metrics:
        """Return totals so far: `prompt_tokens` and `completion_tokens` as the server counts them, and `requests`."""
        return dict(self._stats)

    async def check(self, seconds: float) -> None:
        """Raise `MetaAgentXError` in one line unless the server has this model and replies to a short message.

        A server with a single model often replies whatever the requested name is: another name is an error as well.
        """
        served: list[ServedModel] = []
        problem = ""
        try:
            async with asyncio.timeout(seconds):
                served = await self._served_models()
                await self.chat(_GREETING, SamplingParams(_PROBE_TOKENS))
            if len(served) == 1 and not _has(served, self._model):
                problem = f"{self._url} has no model {self._model!r}"
        except TimeoutError:
            problem = f"{self} did not reply within {seconds:g} s"
        except (MetaAgentXError, BackendError, PromptRejected) as error:
            problem = str(error)
        if problem:
            names = [repr(model.id) for model in served[:_SHOWN_NAMES]] + ["..."] * (len(served) > _SHOWN_NAMES)
            other = served and not _has(served, self._model)
            raise MetaAgentXError(f"{problem}; the server has {', '.join(names)}" if other else problem)

    async def _served_models(self) -> list[ServedModel]:
        """Return the server's models; nothing if it does not list them."""
        from openai import APIError

        async with self._connection() as client:
            try:
                response = await client.models.with_raw_response.list()
                return ModelList.model_validate_json(response.content).data
            except (APIError, ValidationError):
                return []

    async def chat(self, messages: Messages, params: SamplingParams) -> ChatReply:
        """Return the server's reply.

        Reasoning that the server returns separately is put before the text, in `<think>`. Servers leave out the stop
        string that ended a reply; it is appended where the server says which one it was.
        """
        if params.stop_tokens:
            raise MetaAgentXError("the openai backend has no stop tokens, only stop strings: use `stop`")
        completion = await self._request([_without_reasoning(message) for message in messages], params)
        usage = completion.usage or Usage()
        self._stats["prompt_tokens"] += usage.prompt_tokens or 0
        self._stats["completion_tokens"] += usage.completion_tokens or 0
        choice = completion.choices[0]
        if choice.finish_reason in ("abort", "error"):
            raise BackendError(f"{self} aborted its reply (finish_reason {choice.finish_reason!r})")
        text = reply_text(choice, params)
        written, read = read_token_ids(choice.token_ids), read_token_ids(completion.prompt_token_ids)
        counted = usage.completion_tokens or len(written)
        tokens = counted if counted > 0 else max(1, -(-len(text.encode()) // BYTES_PER_TOKEN))
        finish = "length" if choice.finish_reason == "length" else "stop"
        logprobs = read_logprobs(choice.logprobs)
        return ChatReply(text, finish, usage.prompt_tokens or len(read), tokens, read, written, logprobs)  # type: ignore[arg-type]

    async def _request(self, messages: Messages, params: SamplingParams) -> ChatCompletion:
        """Send the request, and again while the server is busy, with exponentially longer pauses or those it asks for.

        The request keeps its slot meanwhile, which slows the others down. A server that never answered is not tried
        again: its URL is probably wrong.
        """
        from openai import APIConnectionError, APIStatusError

        next_pause, give_up = _FIRST_PAUSE_SECONDS, 0.0
        async with self._connection() as client:
            while True:
                pause = next_pause * random.uniform(0.5, 1.0)
                next_pause = min(2 * next_pause, _LONGEST_PAUSE_SECONDS)
                try:
                    completion = await self._send(client, messages, params)
                    self._answered = True
                    return completion
                except APIConnectionError as error:
                    reason = self._redact(str(error.__cause__ or "")) or type(error.__cause__).__name__
                    problem: Exception = BackendError(f"{self._url} cannot be reached: {reason}")
                    may_pass = self._answered
                except APIStatusError as error:
                    self._answered = True
                    problem = self._translate(error)
                    refused = error.status_code in _INVALID and isinstance(problem, BackendError)
                    if refused and await self._greets(client, messages, params):
                        problem = PromptRejected(str(problem))
                    may_pass = error.status_code in _BUSY and isinstance(problem, BackendError)
                    pause = max(pause, requested_pause(error))
                give_up = give_up or time.monotonic() + self._retry_seconds
                if not may_pass or time.monotonic() + pause > give_up:
                    raise problem from None
                await asyncio.sleep(pause)

    async def _greets(self, client: "AsyncOpenAI", refused: Messages, params: SamplingParams) -> bool:
        """Return whether the server answers a greeting with these settings, so that what it refused is at fault."""
        from openai import APIError

        if list(refused) == list(_GREETING):
            return False
        try:
            await self._send(client, _GREETING, params)  # the limit as well: it may be what was refused
        except (APIError, BackendError):
            return False
        return True

    async def _send(self, client: "AsyncOpenAI", messages: Messages, params: SamplingParams) -> ChatCompletion:
        """Send the request, again where the server rejects the name or the size of the length limit.

        The older name goes first: more servers know it. As in training, a reply gets the room that the prompt leaves in
        the context, where that is less than `max_tokens`.
        """
        from openai import BadRequestError

        newer = "max_completion_tokens"
        key = self._max_tokens_key
        while True:
            try:
                completion = await self._post(client, messages, params, key)
                self._max_tokens_key = key
                return completion
            except BadRequestError as error:
                message = self._message_of(error)
                if room := reply_room(message, params.max_tokens):
                    params = replace(params, max_tokens=room)
                elif key != newer and newer in message:
                    key = newer
                else:
                    raise

    async def _post(
        self, client: "AsyncOpenAI", messages: Messages, params: SamplingParams, max_tokens_key: str
    ) -> ChatCompletion:
        options: dict[str, object] = {max_tokens_key: params.max_tokens, "temperature": params.temperature}
        if params.seed is not None:
            options["seed"] = params.seed % _SEEDS
        if params.stop:
            options["stop"] = list(params.stop)
        self._stats["requests"] += 1
        response = await client.chat.completions.with_raw_response.create(
            model=self._model,
            messages=cast("list[ChatCompletionMessageParam]", messages),
            extra_body=options | self._extra_body,
        )
        try:
            return ChatCompletion.model_validate_json(response.content)
        except ValidationError:
            start = self._redact(response.content[:300].decode("utf-8", "replace"))
            raise BackendError(f"{self} did not return a chat completion, but {start!r}") from None

    @asynccontextmanager
    async def _connection(self) -> "AsyncIterator[AsyncOpenAI]":
        """Yield the client of the running event loop as soon as fewer than `max_concurrency` requests use it."""
        from openai import AsyncOpenAI, Timeout

        loop = asyncio.get_running_loop()
        if loop not in self._connections:
            # The caller has timeouts and retries, so the client has none but for connecting.
            timeout = Timeout(None, connect=_CONNECT_SECONDS)
            client = AsyncOpenAI(api_key=self._key or "none", base_url=self._url, timeout=timeout, max_retries=0)
            self._connections[loop] = client, asyncio.Semaphore(self._max_concurrency)
        client, semaphore = self._connections[loop]
        async with semaphore:
            yield client

    def _translate(self, error: "APIStatusError") -> Exception:
        """Return our exception for an error response. Most are `BackendError`, as the one request may be at fault."""
        status, message = error.status_code, self._message_of(error)
        key = f"the key in {self._key_env}" if self._key else f"no key; put one in {self._key_env}"
        if status == 401:  # such messages repeat the key
            return MetaAgentXError(f"{self} refuses access (401) with {key}")
        if status == 403:
            return MetaAgentXError(f"{self} refuses access (403) with {key}: {message}")
        if status == 402 or "insufficient_quota" in (error.code, error.type):
            return MetaAgentXError(f"{self} has no quota left for {key} ({status}): {message}")
        if status == 404:
            fix = "check the model's name and that the URL has its path, such as /v1"
            return MetaAgentXError(f"{self} was not found (404), {fix}: {message}")
        if status in _INVALID and CONTEXT_OVERFLOW.search(f"{message} {error.code}"):
            return ContextOverflow(f"{self} has no room for the conversation: {message}")
        return BackendError(f"{self} returned an error ({status}): {message}")

    def _message_of(self, error: "APIStatusError") -> str:
        body = error.body if isinstance(error.body, Mapping) else {}
        message = body.get("message", body.get("detail"))
        return self._redact(message if isinstance(message, str) else error.response.text) or "no reason given"

    def _redact(self, text: str) -> str:
        """Return at most 300 characters on one line, without the key, which servers like to repeat."""
        hidden = text.replace(self._key, "***") if self._key else text
        return " ".join(hidden.split())[:300]


def _has(served: Sequence[ServedModel], name: str) -> bool:
    return any(name in (model.id, *model.aliases) for model in served)


def _without_reasoning(message: Mapping[str, str]) -> Mapping[str, str]:
    """Return the message without the reasoning of an earlier assistant turn, which servers do not want back."""
    if message["role"] != "assistant":
        return message
    return {"role": "assistant", "content": visible(message["content"]).lstrip("\n")}


def parse_extra_body(text: str | None) -> dict[str, object]:
    """Return the JSON object of the option `--extra-body`."""
    example = """'{"top_p": 0.95}'"""
    try:
        body = json.loads(text or "{}", parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise MetaAgentXError(f"--extra-body is not JSON ({error}): expected an object, such as {example}") from None
    if not isinstance(body, dict):
        raise MetaAgentXError(f"--extra-body is not a JSON object: expected one, such as {example}")
    return body


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON value")


def _check_url(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise MetaAgentXError(f"invalid URL {url!r}: expected one like http://localhost:8000/v1")
    if parts.username is not None or parts.query:
        raise MetaAgentXError(
            f"the URL of {parts.hostname} contains credentials or a query: put the key in an environment variable"
        )
    return url.rstrip("/")


def _read_key(variable: str, required: bool) -> str:
    key = os.environ.get(variable, "").strip()
    if required and not key:
        raise MetaAgentXError(f"{OPENAI_URL} needs an API key: put it in {variable}, or set the URL of another server")
    if not (key.isascii() and key.isprintable()):
        raise MetaAgentXError(f"{variable} does not contain a valid API key: it has non-ASCII or control characters")
    return key
