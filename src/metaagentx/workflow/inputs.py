"""What the host states to the language besides the question: global variables of the script, read where they matter."""

from __future__ import annotations

import sys
from typing import TypeVar

T = TypeVar("T")

CALLS_INPUT = "__max_calls__"
"""The limit of model calls."""
INSTRUCTION_INPUT = "__agent_instruction__"
"""What every agent is told after its own system prompt."""
LENIENT_INPUT = "__lenient__"
"""Whether unknown keyword arguments are ignored."""
TOOLS_INPUT = "__tools__"
"""The tools that the operator offers, each with its name, description and parameters."""


def host_input(name: str, default: T) -> T:
    """Return what the host states under a name, or the default where it states nothing of this type."""
    value = getattr(sys.modules.get("__main__"), name, default)
    return value if isinstance(value, type(default)) else default
