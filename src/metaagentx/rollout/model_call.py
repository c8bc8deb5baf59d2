"""Reads the model calls that a script asks for: whatever arrives, a conversation or nothing."""

from ..sandbox import JSON
from .sampling import Chat


def parse_model_call(body: JSON) -> tuple[str, Chat] | None:
    """Return agent and messages of an ask; None if it is not a well-formed model call."""
    if not isinstance(body, dict) or body.get("kind") != "model":
        return None
    agent, messages = body.get("agent"), body.get("messages")
    if not isinstance(agent, str) or not isinstance(messages, list) or not messages:
        return None
    chat: list[dict[str, str]] = []
    for message in messages:
        if not isinstance(message, dict):
            return None
        role, content = message.get("role"), message.get("content")
        if not isinstance(role, str) or not isinstance(content, str):
            return None
        chat.append({"role": role, "content": content})
    return (agent, tuple(chat)) if _in_turn([message["role"] for message in chat]) else None


def _in_turn(roles: list[str]) -> bool:
    """Return whether every chat template accepts roles in this order: a script must not be able to break one."""
    turns = roles[1:] if roles[0] == "system" else roles
    return len(turns) % 2 == 1 and turns[::2] == ["user"] * len(turns[::2]) and set(turns[1::2]) <= {"assistant"}
