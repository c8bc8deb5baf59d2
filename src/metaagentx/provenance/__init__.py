"""Provenance: the source of every span of a prompt, and whether the script fed the answer to an agent.

Pure functions of the task's question, the calls of an execution and the outputs of programs that agents wrote. All of
these are in the rollout, so the executor, the reward and the report get the same result. Texts are untrusted: nothing
here raises, and the cost is linear in their size and bounded.
"""

from .fed import find_fed
from .spans import Prompts, Span, accept_programs, accept_tools, answer_of, delivery_of, final_answer
from .values import canonical

__all__ = [
    "Prompts",
    "Span",
    "accept_programs",
    "accept_tools",
    "answer_of",
    "canonical",
    "delivery_of",
    "final_answer",
    "find_fed",
]
