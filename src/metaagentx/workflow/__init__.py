"""The language workflows are written in: agents, ways for them to work together, and the order they work in.

Standard library only, relative imports only: inside the sandbox this directory is the top-level package `workflow`.
"""

from .agent import AgentNode
from .flow import ConditionalWorkflow, LoopWorkflow, Workflow
from .graph import END, AgentGraph
from .messages import Context, Message, WorkflowError
from .node import WorkflowNode, ask
from .nodes import DebateNode, EnsembleNode, ReflectionNode, RouterNode
from .protocol import Answer
from .rehearsal import REHEARSAL
from .runtime import Ask, PythonOutcome, Transport, WorkflowSession, use
from .tools import ToolRegistry

__all__ = [
    "END",
    "REHEARSAL",
    "AgentGraph",
    "AgentNode",
    "Answer",
    "Ask",
    "ConditionalWorkflow",
    "Context",
    "DebateNode",
    "EnsembleNode",
    "LoopWorkflow",
    "Message",
    "PythonOutcome",
    "ReflectionNode",
    "RouterNode",
    "ToolRegistry",
    "Transport",
    "Workflow",
    "WorkflowError",
    "WorkflowNode",
    "WorkflowSession",
    "ask",
    "use",
]
