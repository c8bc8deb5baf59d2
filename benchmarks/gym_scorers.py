"""What the scorers of reasoning-gym pay for garbage: python -m benchmarks.gym_scorers [generator ...].

For each generator ten tasks of seed 1234: how many golds our grader solves, the best raw score that a text without
meaning got from the generator's own scorer, how often that was full marks, and how often our grader paid it.
"""

import asyncio
import json
import signal
import sys
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from typing import Any

from metaagentx.rewards.graders import Graders
from metaagentx.tasks.gym_library import NOT_GRADED, import_reasoning_gym
from metaagentx.types import FinalAnswer, GymEntry

TASKS = 10
GARBAGE = (
    *("x", "I do not know.", "?", "[]", "{}", "null", "None", "nan", "inf", "-1", "asdf qwer", "[[]]", ",", "-", "."),
    *("a b c d e f g", "0 " * 50, "abcdefghijklmnopqrstuvwxyz", '{"a": 1}', "6+6+6+6", "lorem ipsum dolor sit amet"),
)


class TooSlow(BaseException):
    """A scorer took more than its seconds; not an Exception, because scorers swallow those."""


@dataclass
class Row:
    """What was measured of one generator."""

    generator: str
    golds: int = 0
    solved: int = 0
    raw_best: float = 0.0
    raw_full: int = 0
    paid: int = 0
    raised: int = 0


def raw_score(dataset: Any, answer: str, entry: dict[str, Any]) -> float | None:
    """The scorer's own word, None when it raised or took too long."""
    signal.alarm(5)
    try:
        with redirect_stdout(StringIO()):
            return float(dataset.score_answer(answer, entry))
    except (TooSlow, Exception):  # noqa: BLE001 - the very thing that is measured
        return None
    finally:
        signal.alarm(0)


async def measure(pool: Graders, generator: str) -> Row:
    """Golds and garbage for one generator."""
    reasoning_gym = import_reasoning_gym()

    row = Row(generator)
    dataset = reasoning_gym.create_dataset(generator, seed=1234, size=TASKS)
    for entry in (dataset[index] for index in range(TASKS)):
        plain = json.loads(json.dumps(entry, default=str))
        task = GymEntry(generator, {}, plain)
        if isinstance(entry["answer"], str):
            row.golds += 1
            row.solved += (await pool.grade_gym(FinalAnswer.parse(entry["answer"]), task)).solved
        for text in GARBAGE:
            if text == str(entry["answer"]).strip():
                continue
            score = raw_score(dataset, text, entry)
            row.raised += score is None
            row.raw_best = max(row.raw_best, score or 0.0)
            if score is not None and score >= 1 - 1e-9:
                row.raw_full += 1
                row.paid += (await pool.grade_gym(FinalAnswer.parse(text), task)).solved
    return row


async def main(names: list[str]) -> None:
    """Print one line for each generator."""
    datasets = import_reasoning_gym().factory.DATASETS

    def stop(*_: object) -> None:
        raise TooSlow

    signal.signal(signal.SIGALRM, stop)
    print("| generator | golds solved | best raw score of garbage | raw full marks | paid by us | raised |")
    print("|---|---|---|---|---|---|")
    async with Graders() as pool:
        for name in names or sorted(set(datasets) - set(NOT_GRADED)):
            row = await measure(pool, name)
            figures = (f"{row.solved}/{row.golds}", f"{row.raw_best:.3f}", row.raw_full, row.paid, row.raised)
            print("|", " | ".join([name, *map(str, figures)]), "|", flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
