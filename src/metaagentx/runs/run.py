"""One run directory: what is written when, and what entering it again goes back to."""

import asyncio
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Self, TypeAlias

from ..errors import MetaAgentXError
from ..policy import BackendError, Policy
from ..types import JSON, Role, Rollout
from . import files, records
from .commands import resume_command
from .records import Best
from .trees import read_rollouts, rollout_to_json

_LOST = "its figures are lost, and training needs none of them"
Policies: TypeAlias = Mapping[str, Policy] | Mapping[Role, Policy]


class Run:
    """One run directory. Reading needs nothing; writing needs the lock, which `with` holds."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._lock: int | None = None
        self._steps = 0  # finished, while the lock is held
        self._made: os.stat_result | None = None  # the directory, if it was made through this object

    @classmethod
    def create(cls, directory: Path, config_text: str, recipe: str = "") -> Self:
        """A new run. `recipe` is the name of the recipe it follows, for people."""
        with _new_run(directory, config_text, {"recipe": recipe, "forked_from": None}):
            pass
        return cls(directory)._new()

    @classmethod
    def open(cls, directory: Path) -> Self:
        """A run to read."""
        files.refuse_dangling(directory)
        with files.explained_reading():
            if not files.exists(directory / "run.json"):
                missing = "is no run: it has no run.json" if directory.exists() else "does not exist"
                raise MetaAgentXError(f"{directory} {missing}")
            records.read_object(directory / "run.json")
        return cls(directory)

    @classmethod
    def resume(cls, directory: Path) -> Self:
        """A run to go on with. Nothing changes before it is entered."""
        run = cls.open(directory)
        run._metrics_below(run.next_step)
        return run

    @classmethod
    def fork(cls, source: Path, step: int, directory: Path, config_text: str | None = None) -> Self:
        """A new run that goes on from a checkpoint of another, with its configuration if no other is given."""
        origin = cls.open(source)
        checkpoint = origin.checkpoint_at(step)
        state = records.read_state(checkpoint)
        if config_text is None:
            config_text = origin.config_text
        about: dict[str, JSON] = {
            "recipe": origin.recipe,
            "forked_from": {"run": str(source.absolute()), "step": step},
        }
        with _new_run(directory, config_text, about) as unfinished:
            (unfinished / "metrics.jsonl").write_bytes(origin._metrics_below(step))
            place = unfinished / "checkpoints" / checkpoint.name
            try:
                files.copy_directory(checkpoint, place)
            except FileNotFoundError:
                raise MetaAgentXError(f"{checkpoint} was removed while it was copied, by the run it is of") from None
            best = state.best if state.best and state.best.step == step else None
            (place / "state.json").write_bytes(records.state_line(step, best, state.extra))
            if best:
                (unfinished / "best").write_bytes(records.best_line(best))
        return cls(directory)._new()

    def _new(self) -> Self:
        with suppress(OSError):
            self._made = self.directory.stat()
        return self

    def discard(self) -> None:
        """Remove a run that this object made and nobody trained, if it is still there."""
        with suppress(OSError):
            if self._made and not self.begun and os.path.samestat(self._made, self.directory.stat()):
                shutil.rmtree(self.directory)

    def __enter__(self) -> Self:
        lock = self.directory / "lock"
        with self._explained(self.directory):
            held = files.take_lock(lock)
            if held is None:
                raise MetaAgentXError(
                    f"{self.directory} is in use by {files.lock_holder(lock)}: wait for it or stop it"
                )
            self._lock = held
            try:
                self._go_back()
            except BaseException:
                self.__exit__()
                raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            os.close(self._lock)  # which gives the lock up
            self._lock = None

    @property
    def config_text(self) -> str:
        """The whole configuration, itself a recipe."""
        with files.explained_reading():
            return (self.directory / "config.toml").read_bytes().decode()

    @property
    def made_at(self) -> Path | None:
        """The directory that the run was made in, which is another one after a move; None if it does not say."""
        with files.explained_reading():
            place = records.read_object(self.directory / "run.json").get("directory")
        return Path(place) if isinstance(place, str) else None

    @property
    def recipe(self) -> str:
        """The name of the recipe that the run follows; empty where it is not known."""
        name = records.read_object(self.directory / "run.json").get("recipe")
        return name if isinstance(name, str) else ""

    @property
    def checkpoints(self) -> dict[int, Path]:
        """Complete checkpoints by the number of steps done, in that order."""
        with files.explained_reading():  # not by glob, which passes over what it may not read
            place = self.directory / "checkpoints"
            paths = list(place.iterdir()) if files.exists(place) else []
            return {step: path for step, path in sorted(_numbered(paths)) if files.exists(path / "state.json")}

    @property
    def checkpoint(self) -> Path | None:
        """The newest checkpoint."""
        return next(reversed(self.checkpoints.values()), None)

    @property
    def next_step(self) -> int:
        """The step to do next after the newest checkpoint, which is the number of steps done there."""
        return max(self.checkpoints, default=0)

    @property
    def best(self) -> Best | None:
        """What `mark_best` said last."""
        path = self.directory / "best"
        with files.explained_reading():
            return records.read_best(path) if files.exists(path) else None

    def checkpoint_at(self, step: int) -> Path:
        """The checkpoint after that many steps."""
        there = self.checkpoints
        if step not in there:
            steps = ", ".join(map(str, there)) or "none"
            raise MetaAgentXError(f"{self.directory} has no checkpoint of step {step}; steps with one: {steps}")
        return there[step]

    def metrics(self) -> list[dict[str, JSON]]:
        """What each finished step measured."""
        with files.explained_reading():
            return list(records.read_lines(self.directory / "metrics.jsonl", self._cure))

    def rollouts(self, step: int) -> list[Rollout]:
        """The rollouts of a step, without tokens."""
        path = self._rollouts_file(step)
        with files.explained_reading():
            if not files.exists(path):
                raise MetaAgentXError(f"{path} does not exist: no rollouts of step {step} were written")
            return read_rollouts(path)

    @property
    def begun(self) -> bool:
        """Whether anybody ever trained it."""
        return (self.directory / "log.txt").exists()

    @contextmanager
    def training(self) -> Iterator[None]:
        """Training goes on inside. What stops it becomes one line that says how to go on."""
        self.log(f"training goes on from step {self.next_step}")
        try:
            yield
        except (MetaAgentXError, BackendError) as error:
            command = resume_command(self.directory)
            cure = "" if command in str(error) else f"; when that is mended, go on with: {command}"
            raise MetaAgentXError(f"{error}{cure}") from error
        except asyncio.CancelledError:
            self.log(f"stopped after {self.next_step} steps")
            raise
        self.log(f"{self.next_step} steps are done")

    def log(self, line: str) -> None:
        """Add to log.txt, with the time."""
        now = datetime.now().astimezone().isoformat(timespec="seconds")
        path = self.directory / "log.txt"
        with self._explained(path):
            files.append(path, f"{now} {line}\n".encode(errors="backslashreplace"))

    def write_step(self, step: int, metrics: Mapping[str, JSON], rollouts: Sequence[Rollout] | None) -> None:
        """Write down a finished step. Its metrics come last: a step that has them is there whole."""
        self._must_be_entered()
        if step != self._steps:
            raise ValueError(f"step {step} is not the next one, which is {self._steps}")
        fields = {**records.finite_fields(metrics), "format": records.FORMAT, "step": step}
        line = records.json_line(fields, sort_keys=True)
        if rollouts is not None:
            path = self._rollouts_file(step)
            with self._explained(path):
                files.write_whole(path, b"".join(records.json_line(rollout_to_json(tree)) for tree in rollouts))
        path = self.directory / "metrics.jsonl"
        with self._explained(path):
            files.append(path, line)
        self._steps += 1

    async def save_checkpoint(self, step: int, policies: Policies, keep: int, extra: JSON = None) -> None:
        """Save all policies after `step` steps, then remove all but the newest `keep` checkpoints and the best one."""
        self._must_be_entered()
        if step != self._steps:
            raise ValueError(f"{self._steps} steps are done, so this is no checkpoint of step {step}")
        if keep < 1:
            raise ValueError("keep at least one checkpoint")
        state = records.state_line(step, self.best, extra)
        place = self.directory / "checkpoints" / f"{step:06d}"
        with self._explained(place), files.directory_appears(place) as unfinished:
            for name, policy in policies.items():
                await policy.save(unfinished / name)
            (unfinished / "state.json").write_bytes(state)
        there, best = self.checkpoints, self.best
        for old in list(there)[:-keep]:
            if best is None or old != best.step:
                files.remove_directory(there[old])

    async def load_checkpoint(self, policies: Policies) -> JSON:
        """Take all policies to the newest checkpoint and return its `extra`. Without one there is nothing to load."""
        checkpoint = self.checkpoint
        if checkpoint is None:
            return None
        state = records.read_state(checkpoint)
        for name in policies:
            if not (checkpoint / name).exists():
                saved = ", ".join(sorted(path.name for path in checkpoint.iterdir() if path.is_dir()))
                raise MetaAgentXError(f"{checkpoint} has no policy {name}, only {saved}: did the configuration change?")
        for name, policy in policies.items():
            await policy.load(checkpoint / name)
        return state.extra

    def mark_best(self, step: int, score: float) -> None:
        """Say which checkpoint is the best so far: one that is there, or the one that is saved next."""
        self._must_be_entered()
        if step != self._steps:
            self.checkpoint_at(step)
        path = self.directory / "best"
        with self._explained(path):
            files.write_whole(path, records.best_line(Best(step, score)))

    def _go_back(self) -> None:
        """To the newest checkpoint: forget what came after it."""
        for place in (self.directory, self.directory / "rollouts", self.directory / "checkpoints"):
            place.mkdir(exist_ok=True)
            files.clear_remains(place)
        self._steps = self.next_step
        os.truncate(self.directory / "metrics.jsonl", len(self._metrics_below(self._steps)))
        for step, path in _numbered((self.directory / "rollouts").glob("*.jsonl")):
            if step >= self._steps:
                path.unlink()
        best, newest = self.best, self.checkpoint
        if best and best.step > self._steps:
            earlier = records.read_state(newest).best if newest else None
            if earlier:
                files.write_whole(self.directory / "best", records.best_line(earlier))
            else:
                (self.directory / "best").unlink()

    def _metrics_below(self, steps: int) -> bytes:
        """The lines of the first `steps` steps, as they stand in the file."""
        path = self.directory / "metrics.jsonl"
        every = f"one line {records.empty_metrics('N')} for each step"
        with files.explained_reading():
            if not files.exists(path):
                rest = f"write it with {every} from 0 to {steps - 1}; {_LOST}" if steps else "make an empty file"
                raise MetaAgentXError(f"{path} is missing: put it back, or {rest}")
            data = path.read_bytes()
        found = 0
        for step, line in zip(range(steps), records.read_lines(path, self._cure), strict=False):
            if line.get("step") != step:
                raise MetaAgentXError(
                    f"{path}, line {step + 1}: this should be step {step}, so a line is missing: insert "
                    f"{records.empty_metrics(step)} before it; {_LOST}"
                )
            found += 1
        if found < steps:
            raise MetaAgentXError(
                f"{path} ends before step {found}, but there is a checkpoint of step {steps}: after line {found}, "
                f"replace the rest by {every} from {found} to {steps - 1}; {_LOST}"
            )
        return b"".join(data.splitlines(keepends=True)[:steps])

    def _cure(self, number: int) -> str:
        """What to do about a damaged line of metrics.jsonl."""
        if number > self.next_step:
            return f": go on with {resume_command(self.directory)}, which does that step again"
        return f": replace it by {records.empty_metrics(number - 1)}; {_LOST}"

    def _rollouts_file(self, step: int) -> Path:
        return self.directory / "rollouts" / f"{step:06d}.jsonl"

    def _must_be_entered(self) -> None:
        if self._lock is None:
            raise RuntimeError("a run is written inside `with`, which holds its lock")
        self.must_be_here()

    def must_be_here(self) -> None:
        """The directory is still the one that was entered, and was not moved, removed or replaced."""
        try:
            here = (self.directory / "lock").stat()
        except OSError:
            here = None
        if self._lock is None:
            moved = not self.directory.exists()
        else:
            moved = here is None or not os.path.samestat(here, os.fstat(self._lock))
        if moved:
            with suppress(OSError):
                self.directory.rmdir()  # left empty by what was being written when it was moved
            raise MetaAgentXError(
                f"{self.directory} was moved or removed while it was in use: put it back and go on with: "
                f"{resume_command(self.directory)}, or resume it where it is now"
            )

    @contextmanager
    def _explained(self, what: Path) -> Iterator[None]:
        good = f"the last good state is step {self.next_step}"
        cure = f"{good}; when that is mended, go on with: {resume_command(self.directory)}"
        try:
            with files.explained(str(what), cure):
                yield
        except MetaAgentXError:
            self.must_be_here()
            raise


@contextmanager
def _new_run(directory: Path, config_text: str, origin: Mapping[str, JSON]) -> Iterator[Path]:
    """A run that is being made, beside its place; it is there when it is complete."""
    refuse_existing(directory)
    place = directory.resolve() if directory.is_symlink() else directory.absolute()
    unfinished = place.with_name(f".{place.name}.unfinished")
    with files.explained(str(directory), "nothing was made of it"):
        unfinished.mkdir(parents=True, exist_ok=True)
        lock = files.take_lock(unfinished / "lock")
    if lock is None:
        raise MetaAgentXError(f"{directory} is being made by another process: choose another name")
    try:
        with files.explained(str(directory), "nothing was made of it"):
            for remains in [path for path in unfinished.iterdir() if path.name != "lock"]:
                shutil.rmtree(remains) if remains.is_dir() else remains.unlink()
            created = datetime.now().astimezone().isoformat(timespec="seconds")
            about: dict[str, JSON] = {"format": records.FORMAT, "created": created, **origin}
            about["directory"] = str(directory.absolute())
            (unfinished / "run.json").write_bytes(records.json_line(about))
            (unfinished / "config.toml").write_bytes(config_text.encode())
            (unfinished / "metrics.jsonl").touch()
            (unfinished / "rollouts").mkdir()
            (unfinished / "checkpoints").mkdir()
            yield unfinished
            files.flush_all(unfinished)
            refuse_existing(directory)
            unfinished.rename(place)
            files.flush(unfinished.parent)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    finally:
        os.close(lock)


def refuse_existing(directory: Path) -> None:
    """A new run needs a place where nothing is, or an empty directory."""
    files.refuse_dangling(directory)
    with files.explained_reading():
        if files.exists(directory / "run.json"):
            command = resume_command(directory)
            raise MetaAgentXError(f"{directory} is a run already: go on with `{command}` or choose another name")
        if directory.exists() and not (directory.is_dir() and next(directory.iterdir(), None) is None):
            raise MetaAgentXError(f"{directory} exists and is no run: choose another name")


def _numbered(paths: Iterable[Path]) -> Iterator[tuple[int, Path]]:
    """Files and directories that are named after a step."""
    return ((int(path.stem), path) for path in paths if path.stem.isdecimal() and path.stem.isascii())
