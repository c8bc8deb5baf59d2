"""Checks training data before anything is computed."""

import math
from collections.abc import Sequence

from ..errors import MetaAgentXError
from ..options import LossConfig
from ..policy import Datum, LossName


def check_data(data: Sequence[Datum], loss: LossName, options: LossConfig, context: int, vocabulary: int) -> None:
    """Raise for an unknown loss, invalid options, or the first invalid datum."""
    if loss not in ("cross_entropy", "ppo"):
        raise MetaAgentXError(f"unknown loss {loss!r}: expected cross_entropy or ppo")
    for index, datum in enumerate(data):
        if problem := _datum_problem(datum, context, vocabulary) or _loss_problem(datum, loss, options):
            raise MetaAgentXError(f"invalid datum {index} of {len(data)}: {problem}")


def _datum_problem(datum: Datum, context: int, vocabulary: int) -> str | None:
    length = len(datum.tokens)
    if len(datum.weights) != length:
        return f"it has {length} tokens and {len(datum.weights)} weights"
    if length > context:
        return f"its {length} tokens exceed the model's context of {context}"
    if length and not 0 <= min(datum.tokens) <= max(datum.tokens) < vocabulary:
        return f"its tokens are {min(datum.tokens)} to {max(datum.tokens)}, expected 0 to {vocabulary - 1}"
    if length and datum.weights[0]:
        return "its first token has a weight, but no token before it predicts it"
    if not all(0 <= weight < math.inf for weight in datum.weights):
        return "a weight is negative or not finite"
    return None


def _loss_problem(datum: Datum, loss: LossName, options: LossConfig) -> str | None:
    if loss == "cross_entropy":
        return None
    if not math.isfinite(datum.advantage):
        return f"its advantage is {datum.advantage}"
    needed = [("behavior", datum.logprobs)]
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
