"""One agent: a bounded loop of model calls and tool uses that ends in a message."""

from __future__ import annotations

from collections import Counter

from .inputs import INSTRUCTION_INPUT, host_input
from .messages import Context, Message, WorkflowError
from .node import WorkflowNode, checked_count
from .protocol import INSTRUCTION, ToolUse, pending_tool_uses
from .runtime import ask_model, ignore_unknown
from .structure import CallsOf, NodeInfo
from .tools import ToolRegistry

LAST_TURN = "This is your last turn: use no tool any more and finish with your delivery."


class AgentNode(WorkflowNode):
    """One agent. It sees the question and the earlier deliveries, may use its tools, and ends with a delivery.

    A reply is final unless it uses a tool; it uses one when it holds a tool call, or a ```python block that a tool can
    run, and no delivery or final answer after it. The tool's output is the next thing the agent reads. After
    `max_turns` replies the last one is final whatever it holds. An agent without tools replies once, and code it
    writes is text.
    """

    @ignore_unknown
    def __init__(
        self, name: str, system_prompt: str, tool_registry: ToolRegistry | None = None, max_turns: int = 10
    ) -> None:
        super().__init__(name)
        if not isinstance(system_prompt, str):
            raise WorkflowError(f"{name}: system_prompt must be a str")
        if tool_registry is not None and not isinstance(tool_registry, ToolRegistry):
            raise WorkflowError(f"{name}: tool_registry must be a ToolRegistry")
        self.system_prompt = system_prompt
        self.tool_registry = ToolRegistry() if tool_registry is None else tool_registry
        self.max_turns = checked_count(name, "max_turns", max_turns)

    async def process(self, context: Context) -> Message:
        instruction = host_input(INSTRUCTION_INPUT, INSTRUCTION)
        system = self._system_message(instruction)
        # Only ever appended to: the host continues the tokens of earlier turns.
        chat = [{"role": "system", "content": system}, {"role": "user", "content": user_prompt(context)}]
        for turns_left in range(self.max_turns - 1, -1, -1):
            call, text = await ask_model(self.name, chat)
            uses = self._pending_uses(text) if turns_left else []
            if not uses:
                break
            output = await self.tool_registry.answer(uses)
            note = f"\n\n{LAST_TURN}" if turns_left == 1 else ""
            chat += [{"role": "assistant", "content": text}, {"role": "user", "content": output + note}]
        return Message.from_reply(self.name, text, call, system, instruction)

    def _inspect(self, calls_of: CallsOf) -> NodeInfo:
        tools = tuple(self.tool_registry.list_tools())
        turns = self.max_turns if tools else 1  # only tools give a reason for a second turn
        identity = (self.name, self.system_prompt, self.max_turns, tools)
        return NodeInfo("agent", turns, tools=tools, rounds=turns, identity=identity)

    def _system_message(self, instruction: str) -> str:
        parts = [self.system_prompt.strip(), instruction]
        if self.tool_registry and self.max_turns > 1:
            parts.append(self.tool_registry.describe())
        return "\n\n".join(part for part in parts if part)

    def _pending_uses(self, text: str) -> list[ToolUse]:
        if not self.tool_registry:
            return []
        return pending_tool_uses(text, runs_python=self.tool_registry.python_tool is not None)


def user_prompt(context: Context) -> str:
    """Return the question, what the earlier agents delivered, and what is asked of this one."""
    if not context.messages and not context.request:
        return context.question
    repeated = Counter(message.sender for message in context.messages)
    seen: Counter[str] = Counter()
    parts = [f"Question:\n{context.question}"]
    for message in context.messages:
        seen[message.sender] += 1
        number = f" ({seen[message.sender]})" if repeated[message.sender] > 1 else ""
        parts.append(f"From {message.sender or 'an earlier step'}{number}:\n{message.content}")
    return "\n\n".join([*parts, context.request] if context.request else parts)
