"""Who wrote what: the source of every span of a prompt, and whether the script itself fed the answer to an agent.

Pure functions of the task's question, the calls of an execution and the outputs of programs that agents wrote, all of
which stand in the tree: the executor, the reward and the report see the same. Texts are untrusted: nothing here raises,
and the cost is linear in their size and bounded.
"""

from .fed import find_fed
from .spans import Prompts, Span, accept_programs, instructions
from .values import canonical

__all__ = ["Prompts", "Span", "accept_programs", "canonical", "find_fed", "instructions"]
