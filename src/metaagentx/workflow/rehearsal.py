r"""Small scripts with the replies to their asks: a fork server runs them before its first fork, see `sandbox/inside`.

They use what most scripts use: one agent, an agent with a tool, a vote, a judge, a reflection.
"""

from __future__ import annotations

from .protocol import JSON


def _answer(number: int, value: str) -> JSON:
    return {"text": f"It is so.\n<delivery>\\boxed{{{value}}}</delivery>", "call": number}


_IMPORTS = """from workflow import AgentNode, ToolRegistry, Workflow
from workflow.nodes import EnsembleNode, ReflectionNode
"""
_END = """result = workflow.run(question)
print(result.content)
"""
_TOOL = """tools = ToolRegistry()
tools.register_python()
workflow = Workflow(name="tool")
workflow.add_node(AgentNode(name="Coder", system_prompt="Solve the task.", tool_registry=tools, max_turns=3))
"""
_VOTE = """agents = [AgentNode(name=name, system_prompt=f"Solve the task as {name}.") for name in ("A", "B", "C")]
judge = AgentNode(name="Judge", system_prompt="Decide who is right.")
workflow = Workflow(name="vote")
workflow.add_node(EnsembleNode(name="Vote", agents=agents, strategy="majority_vote", consensus_agent=judge))
"""
_REFLECT = """workflow = Workflow(name="reflect")
solver = AgentNode(name="Solver", system_prompt="Solve it.")
critic = AgentNode(name="Critic", system_prompt="Check it.")
workflow.add_node(ReflectionNode(name="Reflect", agent=solver, critic_agent=critic, num_iterations=1))
"""
_PROGRAM: JSON = {"stdout": "42\n", "stderr": "", "returncode": 0, "timed_out": False}

_SCENES: list[tuple[str, list[JSON]]] = [
    (_TOOL, [{"text": "```python\nprint(6 * 7)\n```", "call": 0}, _PROGRAM, _answer(1, "42")]),
    (_VOTE, [_answer(number, value) for number, value in enumerate(("1", "2", "3", "42"))]),
    (_REFLECT, [_answer(number, "42") for number in range(3)]),
]
REHEARSAL: list[tuple[str, dict[str, JSON], list[JSON]]] = [
    (f"{_IMPORTS}{design}{_END}", {"question": "What is 6 times 7?"}, replies) for design, replies in _SCENES
]
