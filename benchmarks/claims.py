"""The paper's claims, judged by what `benchmarks.compare` has measured.

A claim says that one figure is above another one: a difference in points of tasks solved, from the same seeds, tasks
and cold starts. Its interval covers two 95 % intervals: a bootstrap interval, for which seeds are drawn again and for
all of them the same tasks of every family, and Student's t interval over the means of the seeds, because a bootstrap
over few seeds is too narrow. The verdict:

- **holds**: the whole interval is above 0;
- **does not**: the whole interval is below `MARGIN` points, so if there is a gain at all it is smaller than that;
- **undecided**: otherwise, and always with fewer than `LEAST_SEEDS` seeds.
"""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from statistics import fmean, stdev
from typing import Literal, TypeAlias

from benchmarks.variants import (
    ALTERNATION,
    BY_DESIGN,
    BY_TASK,
    DESIGNER_ONLY,
    EXECUTOR_ONLY,
    JOINT,
    JOINT_EPOCHS,
    JOINT_STEPS,
    LONG,
    NO_ANCHOR,
    ONE_LORA,
    SEPARATE,
    SHORT,
    TWO_LORAS,
    WHOLE,
    Variant,
)
from metaagentx.evaluation.methods import COLD, GRID, SINGLE, TRAINED, VOTES
from metaagentx.evaluation.routers import HINDSIGHT, ROUTER, is_fixed

MARGIN = 2.0
"""Points of tasks solved. A gain that is certainly smaller than this counts as none."""
DRAWS = 1000
LEAST_SEEDS = 3
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""The 0.975 quantiles of Student's t for 1, 2, ... degrees of freedom; the last one is used beyond."""
DESIGNER_GAIN, EXECUTOR_GAIN = GRID["new", "old"], GRID["old", "new"]
Verdict: TypeAlias = Literal["holds", "does not", "undecided"]
MORE_SEEDS = "more seeds and tasks: `--seeds`, `--variant-seeds`"
LONGER = "the paper sees its collapse near step 150 of an 8B model: `--steps`, and"


@dataclass(frozen=True, slots=True)
class Result:
    """What one method solved, from one seed."""

    variant: str
    seed: int
    method: str
    solved: Mapping[str, Sequence[float]]
    """By family and task, in one order of the tasks for all."""
    scripts: int | None = None
    """Different scripts among the designs that can run; None for a router."""
    invalid: float | None = None
    """Share of designs that cannot run."""

    @property
    def mean(self) -> float:
        """Over families."""
        return fmean(map(fmean, self.solved.values()))


Group: TypeAlias = Sequence[Result]
"""The same method from several seeds."""


@dataclass(frozen=True, slots=True)
class Claim:
    """One figure is above another one."""

    text: str
    higher: Group
    lower: Group
    decide: str = MORE_SEEDS
    """What could decide it where this comparison cannot."""


def verdict_of(low: float, high: float, seeds: int = LEAST_SEEDS) -> Verdict:
    """Return the verdict for the interval of a difference, in points, from this many seeds."""
    if seeds < LEAST_SEEDS:
        return "undecided"
    if low > 0:
        return "holds"
    return "does not" if high < MARGIN else "undecided"


def interval(group: Group) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of the mean, in points."""
    chance = random.Random(0)
    counts = {family: len(tasks) for family, tasks in group[0].solved.items()}
    # Seeds are drawn again by how often each occurs, so a draw reads every seed at most once.
    rows = [[result.solved[family] for family in counts] for result in group]

    def again() -> float:
        drawn = [chance.choices(range(count), k=count) for count in counts.values()]
        seeds = Counter(chance.choices(range(len(rows)), k=len(rows)))
        total = 0.0
        for seed, times in seeds.items():
            parts = zip(rows[seed], drawn, strict=True)
            total += times * fmean(sum(map(values.__getitem__, tasks)) / len(tasks) for values, tasks in parts)
        return total / len(rows)

    means = sorted(again() for _ in range(DRAWS))
    return 100 * means[DRAWS // 40], 100 * means[-DRAWS // 40]


def gain_interval(gained: Group) -> tuple[float, float]:
    """Return the interval of a difference, in points: the bootstrap's, widened to Student's over the seeds."""
    low, high = interval(gained)
    if len(gained) > 1:
        means = [100 * result.mean for result in gained]
        reach = STUDENT[min(len(means) - 1, len(STUDENT)) - 1] * stdev(means) / sqrt(len(means))
        low, high = min(low, fmean(means) - reach), max(high, fmean(means) + reach)
    return low, high


def differences(higher: Group, lower: Group) -> list[Result]:
    """Return how much more the first solves than the second, task by task, from the seeds that both have."""
    others = {result.seed: result.solved for result in lower}

    def subtract(result: Result) -> Result:
        pairs = {part: zip(tasks, others[result.seed][part], strict=True) for part, tasks in result.solved.items()}
        return replace(result, solved={part: [ours - theirs for ours, theirs in pair] for part, pair in pairs.items()})

    return [subtract(result) for result in sorted(higher, key=lambda result: result.seed) if result.seed in others]


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that was measured."""

    results: Sequence[Result]
    variants: Mapping[str, Variant]

    def of(self, variant: str, method: str = TRAINED) -> list[Result]:
        """Return the results of one method, by seed."""
        found = [result for result in self.results if (result.variant, result.method) == (variant, method)]
        return sorted(found, key=lambda result: result.seed)

    @property
    def methods(self) -> dict[str, list[Result]]:
        """Return the methods of the recipe as it stands, with the routers."""
        return {
            name: self.of(WHOLE, name) for name in dict.fromkeys(r.method for r in self.results if r.variant == WHOLE)
        }

    @property
    def best_fixed(self) -> tuple[str, list[Result]]:
        """Return the fixed design that solves most over all seeds, chosen with the tasks that measure it."""
        designs = {name: group for name, group in self.methods.items() if is_fixed(name)}
        name = max(designs, key=lambda name: fmean(result.mean for result in designs[name]))
        return name, designs[name]

    @property
    def best_fixed_of_each_seed(self) -> list[Result]:
        """Return the fixed design of each seed that solves most."""
        found = [result for name, group in self.methods.items() if is_fixed(name) for result in group]
        seeds = sorted({result.seed for result in found})
        return [max((r for r in found if r.seed == seed), key=lambda result: result.mean) for seed in seeds]

    def claims(self) -> list[Claim]:
        """Return the claims that can be judged: both of their figures are measured from one seed at least."""
        claims = [*self._headline(), *self._variants()]
        return [claim for claim in claims if differences(claim.higher, claim.lower)]

    def _headline(self) -> list[Claim]:
        methods = self.methods
        if not methods:
            return []
        ours, cold = methods[TRAINED], methods[COLD]
        best, best_group = self.best_fixed
        # The gain of both roles, less the gains of either alone: by addition of the differences.
        designer, executor = methods[DESIGNER_GAIN], methods[EXECUTOR_GAIN]
        together, alone = differences(ours, designer), differences(executor, cold)
        against = [
            (f"the best fixed design over all seeds ({best})", best_group),
            ("the best fixed design of each seed, chosen on the same tasks", self.best_fixed_of_each_seed),
            ("a single agent", methods[SINGLE]),
            ("self-consistency at equal tokens", methods[VOTES]),
            ("the router over the fixed designs", methods.get(ROUTER, [])),
            ("that router in hindsight (an upper bound of such routers)", methods.get(HINDSIGHT, [])),
        ]
        return [
            Claim("Trained, both roles together solve more than the cold start", ours, cold),
            Claim("The Designer learns: its gain with the initial Executor", designer, cold),
            Claim("The Executor learns: its gain with the initial Designer", executor, cold),
            Claim("It takes both: together they gain more than the sum of either alone", together, alone),
            *(Claim(f"MetaAgent-X is above {name}", ours, group) for name, group in against),
        ]

    def _variants(self) -> list[Claim]:
        """Return the claims about variants, each against what differs from it in one thing."""
        claims = []
        for name, (text, decide) in _texts(self.variants).items():
            ours, against = self.of(name), self.of(self.variants[name].against)
            claims.append(Claim(text, against, ours, decide))
        return claims

    def missing(self) -> list[str]:
        """Return the names of variants without results."""
        return [name for name in self.variants if not self.of(name)]


def _texts(variants: Mapping[str, Variant]) -> dict[str, tuple[str, str]]:
    """Return for each variant the claim that what it is measured against solves more, and what could decide it."""
    texts = {
        DESIGNER_ONLY: (
            "A frozen Executor is a ceiling: both roles above the Designer only, equal executions and updates in all",
            "`recipes/designer_only.toml` beside `paper_8b` on GPUs",
        ),
        EXECUTOR_ONLY: (
            "A frozen Designer is a ceiling: both roles above the Executor only, equal executions and updates in all",
            "`recipes/executor_only.toml` beside `paper_8b` on GPUs",
        ),
        JOINT: (
            "Stages above joint training, both without anchor, at equal executions (joint makes twice the updates)",
            f"{LONGER} `recipes/coupled.toml`",
        ),
        JOINT_STEPS: (
            "Stages above joint training, both without anchor, at equal updates (joint has half the executions)",
            f"{LONGER} `recipes/coupled.toml`",
        ),
        JOINT_EPOCHS: (
            "Stages above joint training, both without anchor, at equal executions and updates (half the epochs)",
            f"{LONGER} `recipes/coupled.toml`",
        ),
        ALTERNATION: (
            "Stages above one-step alternation, equal executions and updates",
            f"{LONGER} `recipes/one_step.toml`",
        ),
        SHORT: (
            "Stages of the recipe's length above stages of a third of it, equal executions and updates",
            "`paper_8b` with stages of 10 and of 30 steps, which the paper finds both stable",
        ),
        LONG: (
            "Stages of the recipe's length above stages of twice that, equal executions and updates",
            "`paper_8b` with stages of 10 and of 30 steps, which the paper finds both stable",
        ),
        NO_ANCHOR: (
            "The anchor of the recipe above stages without one, equal executions and updates",
            "the same in larger models, where a LoRA for each role is the other remedy",
        ),
        BY_TASK: (
            "Executions compared within their design above executions compared within their task (the paper's way)",
            '`paper_8b` with `credit.executor_peers = "design"`',
        ),
        BY_DESIGN: (
            "Executions compared within their task (the paper's way) above executions compared within their design",
            '`paper_8b` with `credit.executor_peers = "design"`',
        ),
        ONE_LORA: (
            "Full weights above one LoRA for both roles",
            "larger models, where LoRAs are used: `docs/cluster.md`",
        ),
        TWO_LORAS: ("One LoRA for both roles above a LoRA for each", 'larger models with `model.sharing = "lora"`'),
        SEPARATE: (
            "One set of weights for both roles above separate weights",
            "`recipes/separate.toml` beside `paper_8b` on GPUs",
        ),
    }
    for name, variant in variants.items():
        if " designs x " in name:
            shape = variants[variant.against].config.rollout
            peers = f" (both with {BY_TASK.partition(' ')[2]})" if variant.against == BY_TASK else ""
            texts[name] = (
                f"{shape.designs} designs x {shape.executions} above {name}, equal executions and updates{peers}",
                "`recipes/designs_8x1.toml` beside `paper_8b` on GPUs",
            )
    return {name: texts[name] for name in variants if name in texts}
