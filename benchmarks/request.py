"""What a request to an engine costs the event loop: python -m benchmarks.request [--json].

The backend `openai` asks a server in another process, 64 requests at a time. The server replies at once, with 1,500
tokens, their ids and their log-probabilities, as vLLM writes them.
- request_ms: CPU time of this process for a request, the best of 3 rounds of 500.
"""

import asyncio
import json
import multiprocessing
import sys
import time
from multiprocessing.connection import Connection

from benchmarks.report import Demand, report
from metaagentx.backends.openai import OpenAIChatModel
from metaagentx.policy import SamplingParams

ROUNDS, REQUESTS, AT_ONCE, TOKENS = 3, 500, 64, 1500
DEMANDS = {"request_ms": Demand(5)}


def reply_body() -> bytes:
    """A chat completion of so many tokens."""
    content: list[dict[str, object]] = [
        {"token": "word", "logprob": -0.1234567 - n, "bytes": None, "top_logprobs": []} for n in range(TOKENS)
    ]
    message = {"role": "assistant", "content": "word" * TOKENS}
    choice = {
        "index": 0, "message": message, "finish_reason": "stop", "logprobs": {"content": content},
        "token_ids": list(range(100_000, 100_000 + TOKENS)),
    }  # fmt: skip
    usage = {"prompt_tokens": 1000, "completion_tokens": TOKENS, "total_tokens": 1000 + TOKENS}
    head = {"id": "1", "object": "chat.completion", "created": 1, "model": "m"}
    return json.dumps(head | {"choices": [choice], "usage": usage}).encode()


def serve(pipe: "Connection[int, int]") -> None:
    """Answer every request on a port of the loopback interface, and send that port through the pipe."""
    body = reply_body()
    response = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                await reader.readexactly(int(head.partition(b"content-length:")[2].split(b"\r\n")[0] or 0))
                writer.write(response)
        except asyncio.IncompleteReadError:
            writer.close()

    async def run() -> None:
        server = await asyncio.start_server(handle, "127.0.0.1", 0)
        pipe.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(run())


async def measure_round(model: OpenAIChatModel) -> float:
    """Milliseconds of CPU time for a request."""
    messages = [{"role": "user", "content": "word " * 1000}]
    started = time.process_time()
    replies = await asyncio.gather(*(model.chat(messages, SamplingParams(TOKENS)) for _ in range(REQUESTS)))
    assert all(reply.completion_tokens == TOKENS for reply in replies)
    return 1000 * (time.process_time() - started) / REQUESTS


async def measure(port: int) -> dict[str, float]:
    """The best of the rounds."""
    async with OpenAIChatModel("m", f"http://127.0.0.1:{port}/v1", max_concurrency=AT_ONCE) as model:
        await measure_round(model)
        return {"request_ms": min([await measure_round(model) for _ in range(ROUNDS)])}


if __name__ == "__main__":
    print("measuring requests ...", file=sys.stderr)
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    server = spawn.Process(target=serve, args=(theirs,), daemon=True)
    server.start()
    try:
        report(asyncio.run(measure(ours.recv())), DEMANDS, __doc__)
    finally:
        server.terminate()
