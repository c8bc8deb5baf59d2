"""One run directory: what is written when, and which state entering it restores."""

import asyncio
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Self, TypeAlias

from .. import atomic
from ..errors import MetaAgentXError
from ..policy import BackendError, Policy
from ..types import JSON, Role, Rollout
from . import records
from .commands import resume_command
from .records import BEST, INFO, STATE, Best, CheckpointState, ForkOrigin, RunInfo, read_record, record_line
from .trees import read_rollouts, rollout_to_json

_LOST = "its metrics are lost, but training does not need them"
Policies: TypeAlias = Mapping[str, Policy] | Mapping[Role, Policy]


class Run:
    """One run directory. Anybody may read it; writing needs the lock, which `with` holds."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._lock: int | None = None
        self._steps = 0  # finished, while the lock is held
        self._created: os.stat_result | None = None  # the directory, if this object created it

    @classmethod
    def create(cls, directory: Path, config_text: str, recipe: str = "") -> Self:
        """Create a run. `recipe` is the name of the recipe it follows, for people."""
        with _new_run(directory, config_text, recipe, None):
            pass
        return cls(directory)._remember_creation()

    @classmethod
    def open(cls, directory: Path) -> Self:
        """Open a run for reading."""
        atomic.refuse_dangling(directory)
        with atomic.friendly_read_errors():
            if not atomic.exists(directory / "run.json"):
                missing = "is not a run: it has no run.json" if directory.exists() else "does not exist"
                raise MetaAgentXError(f"{directory} {missing}")
            read_record(directory / "run.json", INFO)
        return cls(directory)

    @classmethod
    def resume(cls, directory: Path) -> Self:
        """Open a run for more training. Nothing changes before it is entered."""
        run = cls.open(directory)
        run._metrics_below(run.next_step)
        return run

    @classmethod
    def fork(cls, source: Path, step: int, directory: Path, config_text: str | None = None) -> Self:
        """Create a run that continues from a checkpoint of another, with its configuration unless another is given."""
        origin = cls.open(source)
        checkpoint = origin.checkpoint_at(step)
        state = read_record(checkpoint / "state.json", STATE)
        if config_text is None:
            config_text = origin.config_text
        fork = ForkOrigin(str(source.absolute()), step)
        with _new_run(directory, config_text, origin.recipe, fork) as unfinished:
            (unfinished / "metrics.jsonl").write_bytes(origin._metrics_below(step))
            copy = unfinished / "checkpoints" / checkpoint.name
            try:
                atomic.copy_directory(checkpoint, copy)
            except FileNotFoundError:
                raise MetaAgentXError(f"{checkpoint} was removed by its run while it was copied: try again") from None
            best = state.best if state.best and state.best.step == step else None
            (copy / "state.json").write_bytes(record_line(STATE, CheckpointState(step, best)))
            if best:
                (unfinished / "best").write_bytes(record_line(BEST, best))
        return cls(directory)._remember_creation()

    def _remember_creation(self) -> Self:
        with suppress(OSError):
            self._created = self.directory.stat()
        return self

    def discard(self) -> None:
        """Remove a run that this object created and nobody trained, if it is still there."""
        with suppress(OSError):
            if self._created and not self.was_trained and os.path.samestat(self._created, self.directory.stat()):
                shutil.rmtree(self.directory)

    def __enter__(self) -> Self:
        path = self.directory / "lock"
        with self._friendly_errors(self.directory):
            lock = atomic.acquire_lock(path)
            if lock is None:
                raise MetaAgentXError(
                    f"{self.directory} is in use by {atomic.lock_holder(path)}: wait for it or stop it"
                )
            self._lock = lock
            try:
                self._restore_newest_checkpoint()
            except BaseException:
                self.__exit__()
                raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            os.close(self._lock)  # releases the lock
            self._lock = None

    @property
    def config_text(self) -> str:
        """Return the whole configuration, itself a recipe."""
        with atomic.friendly_read_errors():
            return (self.directory / "config.toml").read_bytes().decode()

    @property
    def created_in(self) -> Path | None:
        """Return the directory that the run was created in, which differs after a move; None if it is not known."""
        directory = self._info.directory
        return Path(directory) if directory else None

    @property
    def recipe(self) -> str:
        """Return the name of the recipe that the run follows; empty where it is not known."""
        return self._info.recipe

    @property
    def _info(self) -> RunInfo:
        with atomic.friendly_read_errors():
            return read_record(self.directory / "run.json", INFO)

    @property
    def checkpoints(self) -> dict[int, Path]:
        """Return the complete checkpoints by the number of steps done, in that order."""
        with atomic.friendly_read_errors():  # not by glob, which skips what it may not read
            directory = self.directory / "checkpoints"
            paths = list(directory.iterdir()) if atomic.exists(directory) else []
            return {step: path for step, path in sorted(_numbered(paths)) if atomic.exists(path / "state.json")}

    @property
    def checkpoint(self) -> Path | None:
        """Return the newest checkpoint, or None."""
        return next(reversed(self.checkpoints.values()), None)

    @property
    def next_step(self) -> int:
        """Return the step that follows the newest checkpoint, which is the number of steps done there."""
        return max(self.checkpoints, default=0)

    @property
    def best(self) -> Best | None:
        """Return the checkpoint that `mark_best` named last, or None."""
        path = self.directory / "best"
        with atomic.friendly_read_errors():
            return read_record(path, BEST) if atomic.exists(path) else None

    def checkpoint_at(self, step: int) -> Path:
        """Return the checkpoint after that many steps."""
        checkpoints = self.checkpoints
        if step not in checkpoints:
            steps = ", ".join(map(str, checkpoints)) or "none"
            raise MetaAgentXError(f"{self.directory} has no checkpoint of step {step}; steps with one: {steps}")
        return checkpoints[step]

    def metrics(self) -> list[dict[str, JSON]]:
        """Return what each finished step measured."""
        with atomic.friendly_read_errors():
            return list(records.read_lines(self.directory / "metrics.jsonl", self._hint))

    def rollouts(self, step: int) -> list[Rollout]:
        """Return the rollouts of a step, without tokens."""
        path = self._rollouts_file(step)
        with atomic.friendly_read_errors():
            if not atomic.exists(path):
                raise MetaAgentXError(f"{path} does not exist: no rollouts of step {step} were written")
            return read_rollouts(path)

    @property
    def was_trained(self) -> bool:
        """Return whether training of the run ever started."""
        return (self.directory / "log.txt").exists()

    @contextmanager
    def training(self) -> Iterator[None]:
        """Log the start and the end of training; add the command that resumes it to an error that stops it."""
        self.log(f"training from step {self.next_step}")
        try:
            yield
        except (MetaAgentXError, BackendError) as error:
            command = resume_command(self.directory)
            hint = "" if command in str(error) else f". Fix the cause, then resume with: {command}"
            raise MetaAgentXError(f"{error}{hint}") from error
        except asyncio.CancelledError:
            self.log(f"stopped after {self.next_step} steps")
            raise
        self.log(f"{self.next_step} steps are done")

    def log(self, line: str) -> None:
        """Append a line to log.txt, with the time."""
        now = datetime.now().astimezone().isoformat(timespec="seconds")
        path = self.directory / "log.txt"
        with self._friendly_errors(path):
            atomic.append(path, f"{now} {line}\n".encode(errors="backslashreplace"))

    def write_step(self, step: int, metrics: Mapping[str, JSON], rollouts: Sequence[Rollout] | None) -> None:
        """Write a finished step. Its metrics come last: a step that has them is complete."""
        self._must_be_entered()
        if step != self._steps:
            raise ValueError(f"step {step} is not the next step, which is {self._steps}")
        fields = {**records.finite_fields(metrics), "format": records.FORMAT, "step": step}
        line = records.json_line(fields, sort_keys=True)
        if rollouts is not None:
            path = self._rollouts_file(step)
            with self._friendly_errors(path):
                atomic.atomic_write(path, b"".join(records.json_line(rollout_to_json(tree)) for tree in rollouts))
        path = self.directory / "metrics.jsonl"
        with self._friendly_errors(path):
            atomic.append(path, line)
        self._steps += 1

    async def save_checkpoint(self, step: int, policies: Policies, keep: int) -> None:
        """Save all policies after `step` steps, then remove all but the newest `keep` checkpoints and the best one."""
        self._must_be_entered()
        if step != self._steps:
            raise ValueError(f"{self._steps} steps are done, so this is not the checkpoint of step {step}")
        if keep < 1:
            raise ValueError(f"keep must be at least 1, got {keep}")
        state = record_line(STATE, CheckpointState(step, self.best))
        path = self.directory / "checkpoints" / f"{step:06d}"
        with self._friendly_errors(path), atomic.atomic_directory(path) as unfinished:
            for name, policy in policies.items():
                await policy.save(unfinished / name)
            (unfinished / "state.json").write_bytes(state)
        checkpoints, best = self.checkpoints, self.best
        for old in list(checkpoints)[:-keep]:
            if best is None or old != best.step:
                atomic.remove_directory(checkpoints[old])

    async def load_checkpoint(self, policies: Policies) -> None:
        """Load the newest checkpoint, if there is one, into all policies."""
        checkpoint = self.checkpoint
        if checkpoint is None:
            return
        read_record(checkpoint / "state.json", STATE)  # raises an error if the checkpoint is damaged
        for name in policies:
            if not (checkpoint / name).exists():
                saved = ", ".join(sorted(path.name for path in checkpoint.iterdir() if path.is_dir()))
                raise MetaAgentXError(f"{checkpoint} has no policy {name}, only {saved}: did the configuration change?")
        for name, policy in policies.items():
            await policy.load(checkpoint / name)

    def mark_best(self, step: int, score: float) -> None:
        """Record which checkpoint is the best so far: an existing one, or the one that is saved next."""
        self._must_be_entered()
        if step != self._steps:
            self.checkpoint_at(step)
        path = self.directory / "best"
        with self._friendly_errors(path):
            atomic.atomic_write(path, record_line(BEST, Best(step, score)))

    def _restore_newest_checkpoint(self) -> None:
        """Remove what was written after the newest checkpoint."""
        for directory in (self.directory, self.directory / "rollouts", self.directory / "checkpoints"):
            directory.mkdir(exist_ok=True)
            atomic.remove_leftovers(directory)
        self._steps = self.next_step
        os.truncate(self.directory / "metrics.jsonl", len(self._metrics_below(self._steps)))
        for step, path in _numbered((self.directory / "rollouts").glob("*.jsonl")):
            if step >= self._steps:
                path.unlink()
        best, newest = self.best, self.checkpoint
        if best and best.step > self._steps:
            earlier = read_record(newest / "state.json", STATE).best if newest else None
            if earlier:
                atomic.atomic_write(self.directory / "best", record_line(BEST, earlier))
            else:
                (self.directory / "best").unlink()

    def _metrics_below(self, steps: int) -> bytes:
        """Return the lines of the first `steps` steps of metrics.jsonl."""
        path = self.directory / "metrics.jsonl"
        lines = f"one line {records.empty_metrics('N')} for each step"
        with atomic.friendly_read_errors():
            if not atomic.exists(path):
                hint = f"write it with {lines} from 0 to {steps - 1}; {_LOST}" if steps else "create an empty file"
                raise MetaAgentXError(f"{path} is missing: restore it, or {hint}")
            data = path.read_bytes()
        complete = 0
        for step, metrics in zip(range(steps), records.read_lines(path, self._hint), strict=False):
            if metrics.get("step") != step:
                raise MetaAgentXError(
                    f"{path}, line {step + 1}: expected step {step}, so a line is missing: insert "
                    f"{records.empty_metrics(step)} before it; {_LOST}"
                )
            complete += 1
        if complete < steps:
            raise MetaAgentXError(
                f"{path} ends before step {complete}, but there is a checkpoint of step {steps}: after line "
                f"{complete}, replace the rest by {lines} from {complete} to {steps - 1}; {_LOST}"
            )
        return b"".join(data.splitlines(keepends=True)[:steps])

    def _hint(self, number: int) -> str:
        """Return what to do about a damaged line of metrics.jsonl."""
        if number > self.next_step:
            return f": resume with {resume_command(self.directory)}, which does that step again"
        return f": replace it by {records.empty_metrics(number - 1)}; {_LOST}"

    def _rollouts_file(self, step: int) -> Path:
        return self.directory / "rollouts" / f"{step:06d}.jsonl"

    def _must_be_entered(self) -> None:
        if self._lock is None:
            raise RuntimeError("write a run inside `with`, which holds its lock")
        self.check_not_moved()

    def check_not_moved(self) -> None:
        """Raise an error if the directory that was entered was moved, removed or replaced."""
        if self._lock is None:
            moved = not self.directory.exists()
        else:
            try:
                moved = not os.path.samestat((self.directory / "lock").stat(), os.fstat(self._lock))
            except OSError:
                moved = True
        if moved:
            with suppress(OSError):
                self.directory.rmdir()  # left empty by what was being written when it was moved
            raise MetaAgentXError(
                f"{self.directory} was moved or removed while it was in use: put it back and resume with: "
                f"{resume_command(self.directory)}, or resume it where it is now"
            )

    @contextmanager
    def _friendly_errors(self, path: Path) -> Iterator[None]:
        resume = f"Fix the cause, then resume with: {resume_command(self.directory)}"
        try:
            with atomic.friendly_io_errors(str(path), f"the last good state is step {self.next_step}. {resume}"):
                yield
        except MetaAgentXError:
            self.check_not_moved()
            raise


@contextmanager
def _new_run(directory: Path, config_text: str, recipe: str, forked_from: ForkOrigin | None) -> Iterator[Path]:
    """Yield a directory to complete; it becomes the run when the block ends."""
    refuse_existing(directory)
    target = directory.resolve() if directory.is_symlink() else directory.absolute()
    unfinished = target.with_name(f".{target.name}.unfinished")
    with atomic.friendly_io_errors(str(directory), "nothing was created"):
        unfinished.mkdir(parents=True, exist_ok=True)
        lock = atomic.acquire_lock(unfinished / "lock")
    if lock is None:
        raise MetaAgentXError(f"{directory} is being created by another process: choose another name")
    try:
        with atomic.friendly_io_errors(str(directory), "nothing was created"):
            for leftover in [path for path in unfinished.iterdir() if path.name != "lock"]:
                shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
            created = datetime.now().astimezone().isoformat(timespec="seconds")
            info = RunInfo(created, recipe, forked_from, str(directory.absolute()))
            (unfinished / "run.json").write_bytes(record_line(INFO, info))
            (unfinished / "config.toml").write_bytes(config_text.encode())
            (unfinished / "metrics.jsonl").touch()
            (unfinished / "rollouts").mkdir()
            (unfinished / "checkpoints").mkdir()
            yield unfinished
            atomic.flush_all(unfinished)
            refuse_existing(directory)
            unfinished.rename(target)
            atomic.flush(unfinished.parent)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    finally:
        os.close(lock)


def refuse_existing(directory: Path) -> None:
    """Raise an error unless nothing, or an empty directory, is where a new run should be."""
    atomic.refuse_dangling(directory)
    with atomic.friendly_read_errors():
        if atomic.exists(directory / "run.json"):
            command = resume_command(directory)
            raise MetaAgentXError(f"{directory} is already a run: resume it with `{command}`, or choose another name")
        if directory.exists() and not (directory.is_dir() and next(directory.iterdir(), None) is None):
            raise MetaAgentXError(f"{directory} exists and is not a run: choose another name")


def _numbered(paths: Iterable[Path]) -> Iterator[tuple[int, Path]]:
    """Yield the files and directories that are named after a step, with the step."""
    return ((int(path.stem), path) for path in paths if path.stem.isdecimal() and path.stem.isascii())
