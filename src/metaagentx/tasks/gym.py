"""Generated tasks of reasoning-gym: `gym:chain_sum?max_terms=4&seed=7`, endless, reproducible, split by content.

The task at an index depends only on the generator, its settings, the seed and the index. A question belongs to train,
validation or test by a hash of its text, so the splits have no question in common, however few questions a generator
has. Settings are the generator's own configuration fields; `level` sets all of them by its curriculum.
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
from .gym_library import NEEDS_PYCOSAT, REFUSED, has_pycosat, import_reasoning_gym
from .rows import TaskError, first_line
from .taskset import Head, TaskSet, head_of

LICENSE = "Apache-2.0"
BLOCK = 64
"""Tasks are generated in blocks, because some generators draw all their tasks at once."""
_STRIDE = 0x9E3779B1
"""Odd, so that no two blocks share a seed."""
SHARES = ("test", "validation", "train", "train", "train", "train", "train", "train")
"""The split of each of eight questions."""
_GENERATOR_ERRORS = (AssertionError, ArithmeticError, LookupError, RuntimeError, TypeError, ValueError)
"""What generators raise for settings they cannot work with."""
SLOW_TO_MAKE = frozenset({"figlet_font", "group_anagrams", "spell_backward"})
"""Created once for all blocks: creating them reads long lists, and their tasks depend only on seed and index."""


def gym_tasks(generator: str, split: str, settings: Mapping[str, str]) -> TaskSet:
    """Return the endless tasks of a generator."""
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
        task = Task(f"{name}/{split}/{index}", "gym", question, grading, name, split, difficulty, LICENSE)
        # By the exact text: some puzzles differ in nothing but brackets and dots.
        return head_of(task, index, exact(question)), task

    make(0, 0)
    return TaskSet(name, split, make, None).keep(lambda head: split_of(head.fingerprint) == split, "its split")


def split_of(question_hash: str) -> str:
    """Return the split of a question, by its fingerprint."""
    return SHARES[int(digest("split", question_hash)[:8], 16) % len(SHARES)]


def generators() -> list[str]:
    """Return the names of the generators that are offered."""
    lacking = set() if has_pycosat() else {NEEDS_PYCOSAT}
    return sorted(set(_registered()) - set(REFUSED) - lacking)


def _registered() -> Any:
    """Return all generators with their classes, by name."""
    return import_reasoning_gym().factory.DATASETS


class _Blocks:
    """The endless entries of a generator, by index."""

    def __init__(self, generator: str, config: Mapping[str, JSON], seed: int) -> None:
        self._generator, self._config, self._seed = generator, config, seed
        self._block = lru_cache(maxsize=16)(self._make_block)
        self._made: Any = None

    def entry(self, index: int, attempt: int) -> dict[str, JSON]:
        """Return an entry as plain JSON, as graders and run directories see it."""
        block, offset = divmod(index, BLOCK)
        try:
            entry: dict[str, JSON] = json.loads(json.dumps(self._block(block, attempt)[offset]))
        except _GENERATOR_ERRORS as error:
            raise TaskError(f"gym:{self._generator}: {first_line(error)}") from None
        return entry

    def _make_block(self, block: int, attempt: int) -> Any:
        """Generate a block with a range of seeds of its own: task i of seed s is task 0 of seed s+i, modulo 2**32."""
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
    """Return what the generator's curriculum sets at a level, and how difficult that is."""
    from reasoning_gym.factory import DATASETS, create_curriculum, has_curriculum

    if not has_curriculum(generator):
        raise TaskError(f"gym:{generator} has no levels: set its own settings")
    curriculum = create_curriculum(generator)
    top = max(len(attribute.levels) for attribute in curriculum.attributes.values()) - 1
    number = _read_number(generator, "level", level)
    if number > top:
        raise TaskError(f"gym:{generator} has levels 0 to {top}")
    curriculum.set_global_level(number)
    default = vars(DATASETS[generator][1]())
    settings = vars(curriculum.generate_configuration())
    changed = {key: value for key, value in settings.items() if value != default[key]}
    return json.loads(json.dumps(changed)), number / max(1, top)


def _read_settings(generator: str, config_class: Any, settings: Mapping[str, str]) -> dict[str, JSON]:
    default = vars(config_class())
    names = [field.name for field in dataclasses.fields(config_class) if field.name != "size"]
    refuse_unknown(f"gym:{generator}", settings, [*names, "level"])
    return {key: _read(generator, key, value, default[key]) for key, value in settings.items()}


def _read(generator: str, key: str, value: str, default: object) -> JSON:
    """Parse a setting's text as the type of its default."""
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
        raise TaskError(f"gym:{generator}: {key}={value} is not an integer >= 0")
    return int(value)
