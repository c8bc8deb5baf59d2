"""Generated tasks of reasoning-gym: `gym:chain_sum?max_terms=4&seed=7`, endless, reproducible, split by content.

The task at an index depends on the generator, its settings, the seed and the index alone, in any process. A question
belongs to train, validation or test by a hash of its text, so the splits have no question in common, however small a
generator's world is. Settings are the generator's own configuration fields; `level` sets them all along its curriculum.
"""

import copy
import dataclasses
import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from ..types import JSON, GymEntry, Task
from .address import nearest, refuse_unknown
from .fingerprint import digest, exact
from .gym_library import NEEDS_PYCOSAT, has_pycosat, import_reasoning_gym
from .rows import TaskError, first_line
from .taskset import Head, TaskSet, head_of

LICENCE = "Apache-2.0"
BLOCK = 64
"""Generators are asked for blocks, because some draw all their tasks at once."""
_STRIDE = 0x9E3779B1
"""Odd, so that no two blocks meet."""
SHARES = ("test", "validation", "train", "train", "train", "train", "train", "train")
"""Of eight questions."""
_GENERATOR_ERRORS = (AssertionError, ArithmeticError, LookupError, RuntimeError, TypeError, ValueError)
"""How generators say that they cannot work with a setting."""
_UNSTABLE = "the same seed gives other tasks in another process"
_TUPLES = "its scorer needs Python objects that do not survive being written down"
_PAYS = "its scorer gives full marks for one wrong answer to every task"
REFUSED = {
    "arc_agi": _TUPLES,
    "rearc": _TUPLES,
    "composite": "it is a mixture: name its parts in a mixture instead",
    "coin_flip": _PAYS,
    "game_of_life_halting": _PAYS,
    "puzzle24": _PAYS,
    "codeio": _UNSTABLE,
    "isomorphic_strings": _UNSTABLE,
    "knight_swap": _UNSTABLE,
    "list_functions": _UNSTABLE,
    "polynomial_multiplication": _UNSTABLE,
    "ransom_note": _UNSTABLE,
    "word_ladder": _UNSTABLE,
}
"""Measured on reasoning-gym 0.1.25; tests/tasks/test_task_gym.py measures the others."""
SLOW_TO_MAKE = frozenset({"figlet_font", "group_anagrams", "spell_backward"})
"""Made once for all blocks: making them reads long lists, and their tasks depend on seed and index alone."""


def gym_tasks(generator: str, split: str, settings: Mapping[str, str]) -> TaskSet:
    """The endless tasks of a generator."""
    if split not in SHARES:
        raise TaskError(f"gym:{generator} has no split {split!r}: it has train, validation, test")
    config_class = _config_class(generator)
    given = dict(settings)
    seed = _read_number(generator, "seed", given.pop("seed", "0"))
    level = given.pop("level", None)
    config, difficulty = _level_config(generator, level) if level is not None else ({}, None)
    config |= _read_settings(generator, config_class, given)
    query = "&".join(f"{key}={value}" for key, value in settings.items())
    name = f"gym:{generator}?{query}" if query else f"gym:{generator}"
    blocks = _Blocks(generator, config, seed)

    def make(index: int, attempt: int) -> tuple[Head, Task]:
        entry = blocks.entry(index, attempt)
        question = str(entry["question"])
        # Without a seed or a size of its own: one scorer serves all tasks of the source.
        grading = GymEntry(generator, {**config, "seed": 0, "size": 1}, entry)
        task = Task(f"{name}/{split}/{index}", "gym", question, grading, name, split, difficulty, LICENCE)
        # By the exact text: some puzzles differ in nothing but brackets and dots.
        return head_of(task, index, exact(question)), task

    make(0, 0)
    return TaskSet(name, split, make, None).keep(lambda head: split_of(head.fingerprint) == split, "its split")


def split_of(mark: str) -> str:
    """The split of a question, by its fingerprint."""
    return SHARES[int(digest("split", mark)[:8], 16) % len(SHARES)]


def generators() -> list[str]:
    """The names that can be asked for."""
    lacking = set() if has_pycosat() else {NEEDS_PYCOSAT}
    return sorted(set(_registered()) - set(REFUSED) - lacking)


def _registered() -> Any:
    """All generators with their classes, by name."""
    return import_reasoning_gym().factory.DATASETS


class _Blocks:
    """The entries of a generator, by number, over its whole endless range."""

    def __init__(self, generator: str, config: Mapping[str, JSON], seed: int) -> None:
        self._generator, self._config, self._seed = generator, config, seed
        self._block = lru_cache(maxsize=16)(self._make_block)
        self._made: Any = None

    def entry(self, index: int, attempt: int) -> dict[str, JSON]:
        """As plain JSON, which is what graders and run directories see."""
        block, place = divmod(index, BLOCK)
        try:
            entry: dict[str, JSON] = json.loads(json.dumps(self._block(block, attempt)[place]))
        except _GENERATOR_ERRORS as error:
            raise TaskError(f"gym:{self._generator}: {first_line(error)}") from None
        return entry

    def _make_block(self, block: int, attempt: int) -> Any:
        """Seeds are of 32 bits, and task i of seed s is task 0 of seed s+i: so each block gets a range of its own."""
        from reasoning_gym.factory import create_dataset

        start = int(digest(self._generator, self._seed, attempt), 16)
        seed = (start + block * _STRIDE) % (2**32 // BLOCK) * BLOCK
        if self._made is not None:
            made = copy.copy(self._made)
            made.seed = seed
            return made
        made = create_dataset(self._generator, **{**self._config, "seed": seed, "size": BLOCK})
        if self._generator in SLOW_TO_MAKE:
            self._made = made
        return made


def _config_class(generator: str) -> Any:
    try:
        registered = _registered()
    except ImportError:
        raise TaskError("gym tasks need reasoning-gym: pip install 'metaagentx[tasks]'") from None
    if generator in REFUSED:
        raise TaskError(f"gym:{generator} is not offered: {REFUSED[generator]}")
    if generator not in registered:
        raise TaskError(f"no generator {generator!r}: {nearest(generator, generators())}")
    if generator == NEEDS_PYCOSAT and not has_pycosat():
        raise TaskError(f"gym:{generator} needs pycosat, which needs a C compiler: pip install pycosat")
    return registered[generator][1]


def _level_config(generator: str, level: str) -> tuple[dict[str, JSON], float]:
    """What the generator's curriculum sets at a level, and how hard that is."""
    from reasoning_gym.factory import DATASETS, create_curriculum, has_curriculum

    if not has_curriculum(generator):
        raise TaskError(f"gym:{generator} has no levels: set its own settings")
    curriculum = create_curriculum(generator)
    top = max(len(attribute.levels) for attribute in curriculum.attributes.values()) - 1
    wanted = _read_number(generator, "level", level)
    if wanted > top:
        raise TaskError(f"gym:{generator} has levels 0 to {top}")
    curriculum.set_global_level(wanted)
    default = DATASETS[generator][1]()
    chosen = vars(curriculum.generate_configuration())
    return {key: _plain(value) for key, value in chosen.items() if value != vars(default)[key]}, wanted / max(1, top)


def _plain(value: object) -> JSON:
    plain: JSON = json.loads(json.dumps(value))
    return plain


def _read_settings(generator: str, config_class: Any, settings: Mapping[str, str]) -> dict[str, JSON]:
    default = vars(config_class())
    names = [field.name for field in dataclasses.fields(config_class) if field.name != "size"]
    refuse_unknown(f"gym:{generator}", settings, [*names, "level"])
    return {key: _read(generator, key, value, default[key]) for key, value in settings.items()}


def _read(generator: str, key: str, value: str, default: object) -> JSON:
    """A setting's text as the type that its default has."""
    try:
        match default:
            case bool():
                return {"true": True, "yes": True, "false": False, "no": False}[value.lower()]
            case int():
                return int(value)
            case float():
                return float(value)
            case str():
                return value
            case [str(), *_] | (str(), *_):
                return list(value.split(","))
            case [int() | float() as first, *_] | (int() | float() as first, *_):
                return [type(first)(part) for part in value.split(",")]
    except (KeyError, ValueError):
        raise TaskError(f"gym:{generator}: {key}={value} is not {type(default).__name__}, as {default!r} is") from None
    raise TaskError(f"gym:{generator}: {key} cannot be set here")


def _read_number(generator: str, key: str, value: str) -> int:
    if not value.isdecimal():
        raise TaskError(f"gym:{generator}: {key}={value} is not a whole number from 0 on")
    return int(value)
