"""Tools that an operator offers to the agents: Python functions and MCP servers, run on the host.

A script names a tool and its arguments leave the sandbox as JSON text. They are checked against the tool's schema
before anything runs. Whatever goes wrong in a tool is a text that the agent reads. `ToolServerGone` is the exception:
the infrastructure failed, and no agent is at fault. Functions and servers are trusted, arguments are not.
"""

from .box import ToolBox, ToolResult, ToolServerGone, ToolSpec, check_tools

__all__ = ["ToolBox", "ToolResult", "ToolServerGone", "ToolSpec", "check_tools"]
