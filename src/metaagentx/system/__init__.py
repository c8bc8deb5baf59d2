"""A trained system, or any model, as something to ask questions."""

from .system import Result, System, SystemUnavailable, Usage, solve

__all__ = ["Result", "System", "SystemUnavailable", "Usage", "solve"]
