"""Steps in which no design could run: nothing is learned from them, and a person has to know."""

from collections import Counter
from collections.abc import Sequence

from .config import Config
from .errors import MetaAgentXError
from .types import Design, Rollout

_SHOWN_CHARACTERS = 200
_COLD_START = "A model that does not know the workflow language needs a cold start and SFT first: see docs/coldstart.md"


class Standstill:
    """Counts steps in a row in which no design could run."""

    def __init__(self, config: Config) -> None:
        self._most = config.run.stop_after_failed_steps
        self._designer_tokens = config.rollout.designer_tokens
        self._steps = 0
        self._first = self._advice = ""

    def warning(self, step: int, rollouts: Sequence[Rollout]) -> str | None:
        """Count a step, and return what to tell a person: something in the first of such steps, else nothing."""
        designs = [design for tree in rollouts for design in tree.designs]
        if any(design.fault is None for design in designs):
            self._steps = 0
            return None
        self._steps += 1
        if self._steps > 1:
            return None
        fault = next(design.fault for design in designs if design.fault is not None)
        message = " ".join(fault.message.split())[:_SHOWN_CHARACTERS]
        self._first, self._advice = f"(first: {fault.kind}: {message})", self._advise(designs)
        return f"no design of step {step + 1} could run {self._first}. {self._advice}"

    def error(self) -> MetaAgentXError | None:
        """Return the error to stop with, when there were as many such steps in a row as the recipe allows."""
        if not self._most or self._steps < self._most:
            return None
        steps = "step" if self._steps == 1 else f"{self._steps} steps"
        return MetaAgentXError(
            f"no design of the last {steps} could run {self._first}, so nothing was learned. {self._advice}. "
            "To train on all the same, set run.stop_after_failed_steps = 0"
        )

    def _advise(self, designs: Sequence[Design]) -> str:
        """What to do, by what went wrong most often."""
        kinds = Counter(design.fault.kind for design in designs if design.fault is not None and not design.fault.infra)
        if kinds and kinds.most_common(1)[0][0] == "context":
            return "The questions leave no room for a reply: use a model with a longer context, or shorter tasks"
        cut = sum(design.call.finish == "length" for design in designs)
        if 2 * cut > len(designs):
            count, tokens = f"{cut} of {len(designs)}", self._designer_tokens
            cure = f"{count} replies were cut off: raise rollout.designer_tokens, which is {tokens}"
            return f"{cure}. {_COLD_START}"
        return _COLD_START
