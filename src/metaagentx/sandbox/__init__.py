"""Runs untrusted Python."""

from .frames import JSON
from .host import Sandbox
from .types import BudgetExceeded, Infra, Limits, Result, SandboxUnavailable, Tier, Verdict

__all__ = ["JSON", "BudgetExceeded", "Infra", "Limits", "Result", "Sandbox", "SandboxUnavailable", "Tier", "Verdict"]
