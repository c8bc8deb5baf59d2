"""How often the math grader is wrong, by kind of answer: python -m benchmarks.grading_errors.

False accepts pay a wrong answer, false rejects do not pay a right one. The list held out comes last.
"""

import asyncio
from collections import Counter
from dataclasses import dataclass

from benchmarks.math_held_out import held_out
from benchmarks.math_near_misses import near_misses
from benchmarks.math_perturbations import Pair, pairs
from metaagentx.rewards.graders import Graders
from metaagentx.types import FinalAnswer, MathGold


@dataclass(frozen=True)
class ErrorRates:
    """What went wrong in one kind of pairs."""

    kind: str
    right: int
    wrong: int
    false_rejects: tuple[Pair, ...]
    false_accepts: tuple[Pair, ...]


async def grade_pairs(pool: Graders, chosen: list[Pair]) -> list[bool]:
    """Whether each answer is accepted, in the order asked."""
    asked = [pool.grade_math(FinalAnswer.parse(rf"\boxed{{{pair.answer}}}"), MathGold((pair.gold,))) for pair in chosen]
    return [grade.solved for grade in await asyncio.gather(*asked)]


async def math_error_rates() -> list[ErrorRates]:
    """Errors by kind of pair."""
    chosen = [*pairs(), *near_misses(), *held_out()]
    async with Graders() as pool:
        accepted = await grade_pairs(pool, chosen)
    rates = []
    for kind in dict.fromkeys(pair.kind for pair in chosen):
        here = [(pair, verdict) for pair, verdict in zip(chosen, accepted, strict=True) if pair.kind == kind]
        rejects = tuple(pair for pair, verdict in here if pair.accept and not verdict)
        accepts = tuple(pair for pair, verdict in here if verdict and not pair.accept)
        right = sum(pair.accept for pair, _ in here)
        rates.append(ErrorRates(kind, right, len(here) - right, rejects, accepts))
    return rates


def report(rates: list[ErrorRates]) -> str:
    """A table for people, and the pairs that went wrong."""
    lines = ["| kind | right answers | rejected | wrong answers | accepted |", "|---|---|---|---|---|"]
    total: Counter[str] = Counter()
    for rate in rates:
        rejects, accepts = len(rate.false_rejects), len(rate.false_accepts)
        lines.append(f"| {rate.kind} | {rate.right} | {rejects} | {rate.wrong} | {accepts} |")
        total.update(right=rate.right, rejects=rejects, wrong=rate.wrong, accepts=accepts)
    lines.append(f"| all | {total['right']} | {total['rejects']} | {total['wrong']} | {total['accepts']} |")
    for rate in rates:
        lines += [f"rejected: {pair.answer} for {pair.gold}" for pair in rate.false_rejects]
        lines += [f"accepted: {pair.answer} for {pair.gold}" for pair in rate.false_accepts]
    return "\n".join(lines)


if __name__ == "__main__":
    print(report(asyncio.run(math_error_rates())))
