"""MetaAgent-X: multi-agent systems that design themselves and learn to execute their designs.

from metaagentx import System

async with System.open("runs/quickstart/run") as system:
    result = await system.solve("What is 37 * 58?")
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .system import Result, System, SystemUnavailable, Usage, solve

__all__ = ["Result", "System", "SystemUnavailable", "Usage", "__version__", "solve"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Import the public names when they are used: the command line must start at once."""
    if name in __all__:
        from . import system

        return getattr(system, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
