"""Data that cannot be learnt from are refused in one line, before anything is computed."""

import math
from collections.abc import Sequence

from ...errors import MetaAgentXError
from ...policy import Datum, LossName, LossOptions


def check_data(data: Sequence[Datum], loss: LossName, options: LossOptions, context: int, vocabulary: int) -> None:
    """Raise for the first datum that has something wrong with it."""
    if loss not in ("cross_entropy", "importance_sampling"):
        raise MetaAgentXError(f"there is no loss {loss!r}: use cross_entropy or importance_sampling")
    if options.normalise == "constant" and not options.constant > 0:
        raise MetaAgentXError(f"the loss is divided by {options.constant}: set `constant` to more than 0")
    if not 0 < options.temperature < math.inf:
        raise MetaAgentXError(f"a temperature of {options.temperature} has no probabilities: use one above 0")
    for index, datum in enumerate(data):
        if wrong := _fault(datum, context, vocabulary) or _loss_fault(datum, loss, options):
            raise MetaAgentXError(f"datum {index} of {len(data)} cannot be learnt from: {wrong}")


def _fault(datum: Datum, context: int, vocabulary: int) -> str | None:
    length = len(datum.tokens)
    if len(datum.weights) != length:
        return f"it has {length} tokens and {len(datum.weights)} weights"
    if length > context:
        return f"its {length} tokens are more than the model's context of {context}"
    if length and not 0 <= min(datum.tokens) <= max(datum.tokens) < vocabulary:
        return (
            f"its tokens reach from {min(datum.tokens)} to {max(datum.tokens)}, the model's from 0 to {vocabulary - 1}"
        )
    if length and datum.weights[0]:
        return "its first token has a weight, and there is nothing before it to predict it from"
    if not all(0 <= weight < math.inf for weight in datum.weights):
        return "a weight is negative or not finite"
    return None


def _loss_fault(datum: Datum, loss: LossName, options: LossOptions) -> str | None:
    if loss == "cross_entropy":
        return None
    if not math.isfinite(datum.advantage):
        return f"its advantage is {datum.advantage}"
    needed = [("behaviour", datum.logprobs)]
    if options.kl:
        needed.append(("reference", datum.reference_logprobs))
    for name, logprobs in needed:
        if logprobs is None:
            return f"it has no {name} log-probabilities, which this loss needs"
        if len(logprobs) != len(datum.tokens):
            return f"it has {len(datum.tokens)} tokens and {len(logprobs)} {name} log-probabilities"
        if not all(math.isfinite(value) for value, weight in zip(logprobs, datum.weights, strict=True) if weight):
            return f"a {name} log-probability of a trained token is not finite"
    return None
