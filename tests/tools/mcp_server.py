"""An MCP server for tests, over stdio: a calculator, a key-value store, and tools that fail, hang or end the server."""

import ast
import operator
import os
import sys
import time
from pathlib import Path
from typing import Any

if marker := os.environ.get("TEST_SERVER_STARTS"):  # so that a test can count starts, or forbid them
    with Path(marker).open("a") as file:
        file.write(f"{os.getpid()}\n")
    if Path(f"{marker}.forbidden").exists():
        sys.exit("the license has expired")

from mcp.server import MCPServer

server = MCPServer("tests")
STORE: dict[str, str] = {}
OPERATORS: dict[type, Any] = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}


@server.tool()
def calculate(expression: str) -> str:
    """Computes an expression of integers with +, - and *."""

    def value(node: ast.AST) -> int:
        match node:
            case ast.Expression(body):
                return value(body)
            case ast.BinOp(left, sign, right):
                return int(OPERATORS[type(sign)](value(left), value(right)))
            case ast.Constant(int(number)):
                return number
        raise ValueError(f"{expression!r} is not an expression of integers")

    return str(value(ast.parse(expression, mode="eval")))


@server.tool()
def put(key: str, value: str) -> str:
    """Stores a value under a key."""
    STORE[key] = value
    return f"{len(STORE)} keys"


@server.tool()
def get(key: str) -> str:
    """Returns the value under a key."""
    return STORE[key]


@server.tool()
async def wait(seconds: float) -> str:
    """Waits."""
    import anyio

    await anyio.sleep(seconds)
    return "waited"


@server.tool()
async def freeze(seconds: float) -> str:
    """Keeps the whole server from doing anything else."""
    time.sleep(seconds)
    return "thawed"


@server.tool()
def crash(when: str) -> str:
    """Ends the server: always, or once, which a file of this name remembers."""
    if when != "always":
        if Path(when).exists():
            return "survived"
        Path(when).touch()
    os._exit(3)


@server.tool()
def repeat(text: str, times: int) -> str:
    """Returns a long text."""
    return text * times


if __name__ == "__main__":
    server.run()
