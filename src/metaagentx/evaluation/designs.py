"""The fixed designs that a trained Designer is measured against: one agent, one agent with a tool, a vote of three.

The programmed teacher of the quickstart demonstrates the same designs.
"""

AGENT_PROMPT = "Solve the task."
"""The system prompt of every agent in these designs."""
_SINGLE = """from workflow import AgentNode, Workflow
workflow = Workflow(name="single")
workflow.add_node(AgentNode(name="Solver", system_prompt="Solve the task."))
"""
_TOOL = """from workflow import AgentNode, ToolRegistry, Workflow
tools = ToolRegistry()
tools.register_python()
workflow = Workflow(name="tool")
workflow.add_node(AgentNode(name="Coder", system_prompt="Solve the task.", tool_registry=tools, max_turns=3))
"""
_VOTE = """from workflow import AgentNode, Workflow
from workflow.nodes import EnsembleNode
agents = [AgentNode(name=name, system_prompt="Solve the task.") for name in ("A", "B", "C")]
workflow = Workflow(name="vote")
workflow.add_node(EnsembleNode(name="Vote", agents=agents, strategy="majority_vote"))
"""
_END = "result = workflow.run(question)\nprint(result.content)\n"
FIXED_DESIGNS = {"single": _SINGLE + _END, "tool": _TOOL + _END, "vote": _VOTE + _END}
"""Scripts by name."""
