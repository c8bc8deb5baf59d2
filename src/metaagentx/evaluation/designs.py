"""The fixed designs that a trained Designer is measured against.

One agent, with and without a tool, with more turns to try and check again; votes of three; an agent with a critic;
and a planner before a solver. The programmed teacher of the quickstart composes designs of the same parts.
"""

from collections.abc import Sequence

_END = "result = workflow.run(question)\nprint(result.content)\n"
_TOOLS = "tools = ToolRegistry()\ntools.register_python()\n"


def agent_design(agent: str = "Solver", tool_turns: int = 0) -> str:
    """Return the script of one agent; with `tool_turns`, it has the python tool and as many turns."""
    name = "tool" if tool_turns else "single"
    return _script(name, (), bool(tool_turns), f"workflow.add_node({_agent(agent, tool_turns)})\n")


def vote_design(agents: Sequence[str], tool_turns: int = 0) -> str:
    """Return the script of a majority vote."""
    names = ", ".join(f'"{agent}"' for agent in agents)
    body = f"agents = [{_agent('', tool_turns)} for name in ({names})]\n"
    body += 'workflow.add_node(EnsembleNode(name="Vote", agents=agents, strategy="majority_vote"))\n'
    return _script("vote", ("EnsembleNode",), bool(tool_turns), body)


def reflection_design(agent: str = "Solver", critic: str = "Critic", tool_turns: int = 0) -> str:
    """Return the script of an agent whose answer a critic checks, once."""
    body = f"agent = {_agent(agent, tool_turns)}\n"
    body += f"critic = {_agent(critic, 0, CRITIC_PROMPT)}\n"
    node = 'ReflectionNode(name="Reflection", agent=agent, critic_agent=critic, num_iterations=1)'
    return _script("reflection", ("ReflectionNode",), bool(tool_turns), body + f"workflow.add_node({node})\n")


def planner_design(planner: str = "Planner", agent: str = "Solver", tool_turns: int = 0) -> str:
    """Return the script of two roles: one agent says how to solve the task, another one solves it."""
    body = f"workflow.add_node({_agent(planner, 0, PLANNER_PROMPT)})\nworkflow.add_node({_agent(agent, tool_turns)})\n"
    return _script("plan", (), bool(tool_turns), body)


AGENT_PROMPT = "Solve the task."
CRITIC_PROMPT = "Check the result."
PLANNER_PROMPT = "Say how to solve the task."


def _agent(name: str, tool_turns: int, prompt: str = AGENT_PROMPT) -> str:
    quoted = f'"{name}"' if name else "name"
    tool = f", tool_registry=tools, max_turns={tool_turns}" if tool_turns else ""
    return f'AgentNode(name={quoted}, system_prompt="{prompt}"{tool})'


def _script(name: str, nodes: Sequence[str], tools: bool, body: str) -> str:
    imports = "from workflow import AgentNode, " + ("ToolRegistry, " if tools else "") + "Workflow\n"
    imports += f"from workflow.nodes import {', '.join(nodes)}\n" if nodes else ""
    return f'{imports}{_TOOLS if tools else ""}workflow = Workflow(name="{name}")\n{body}{_END}'


FIXED_DESIGNS = {
    "single": agent_design(),
    "tool": agent_design("Coder", tool_turns=3),
    "vote": vote_design(("Ada", "Bob", "Cal")),
}
"""Scripts by name, which every evaluation measures."""
LIBRARY = FIXED_DESIGNS | {
    "retry": agent_design("Coder", tool_turns=6),
    "vote of five": vote_design(("Ada", "Bob", "Cal", "Dan", "Eve")),
    "tool vote": vote_design(("Ada", "Bob", "Cal"), tool_turns=2),
    "reflection": reflection_design(),
    "plan": planner_design(tool_turns=3),
}
"""The designs that the quickstart is measured against. None needs more than six calls."""
