"""Steps in which no design could run: nothing is learned from them, so the user gets a warning and then an error."""

from collections import Counter
from collections.abc import Sequence

from ..config import Config
from ..errors import MetaAgentXError
from ..types import Design, Rollout

_MAX_SHOWN = 200
_COLD_START = "A model that does not know the workflow language needs a cold start and SFT first: see docs/coldstart.md"


class FailedSteps:
    """Counts consecutive steps in which no design could run."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._count = 0
        self._first_fault = self._advice = ""

    def warning(self, step: int, rollouts: Sequence[Rollout]) -> str | None:
        """Count a step, and return a warning if it is the first of a series of failed steps."""
        designs = [design for tree in rollouts for design in tree.designs]
        if any(design.fault is None for design in designs):
            self._count = 0
            return None
        self._count += 1
        if self._count > 1:
            return None
        fault = next(design.fault for design in designs if design.fault is not None)
        message = " ".join(fault.message.split())[:_MAX_SHOWN]
        self._first_fault, self._advice = f"(first: {fault.kind}: {message})", self._advise(designs)
        return f"no design of step {step + 1} could run {self._first_fault}. {self._advice}"

    def error(self) -> MetaAgentXError | None:
        """Return the error to stop with, if the series is as long as `run.stop_after_failed_steps`."""
        limit = self._config.run.stop_after_failed_steps
        if not limit or self._count < limit:
            return None
        steps = "step" if self._count == 1 else f"{self._count} steps"
        return MetaAgentXError(
            f"no design of the last {steps} could run {self._first_fault}, so nothing was learned. {self._advice}. "
            "To continue in spite of this, set run.stop_after_failed_steps = 0"
        )

    def _advise(self, designs: Sequence[Design]) -> str:
        """Return what to do about the most frequent fault."""
        kinds = Counter(design.fault.kind for design in designs if design.fault is not None and not design.fault.infra)
        if kinds and kinds.most_common(1)[0][0] == "context":
            return "The questions leave no room for a reply: use a model with a longer context, or shorter tasks"
        truncated = sum(design.call.finish == "length" for design in designs)
        if 2 * truncated > len(designs):
            return (
                f"{truncated} of {len(designs)} replies were cut off: raise rollout.designer_tokens, which is "
                f"{self._config.rollout.designer_tokens}. {_COLD_START}"
            )
        return _COLD_START
