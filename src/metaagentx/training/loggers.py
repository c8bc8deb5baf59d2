"""Copies of a run's metrics for experiment trackers: TensorBoard, Weights & Biases, Trackio, MLflow.

A package is imported only when it is used. A missing package or an unknown name is an error before training begins; a
failure later is one warning, and training continues. `loggers.json` in the run directory stores the run of each tracker
and the last step that it got, so that a resumed run continues there and logs no step twice.
"""

import importlib
import importlib.util
import json
import logging
import os
import re
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from pydantic import BaseModel, ConfigDict

from ..atomic import atomic_write
from ..errors import MetaAgentXError, path_problem

log = logging.getLogger(__name__)

PROJECT = "metaagentx"


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """What a tracker is told about the run it logs."""

    directory: Path
    name: str
    config: Mapping[str, object]
    """In types that JSON has."""
    id: str
    """The tracker's name for the run."""
    resumed: bool


class Writer(Protocol):
    """One tracker, open for one run."""

    @property
    def id(self) -> str:
        """Return the tracker's name for the run."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write a step's metrics. May be called again for the same step."""

    def close(self, failed: bool) -> None:
        """Flush, and record how the run ended."""


def open_loggers(names: Sequence[str], directory: Path, run_name: str, config: Mapping[str, object]) -> "Loggers":
    """Open these loggers, on the runs that `loggers.json` in the directory names if there is one."""
    check_loggers(names, directory)
    modules = {name: _import(name) for name in dict.fromkeys(names)}
    file = directory / "loggers.json"
    state = _read_state(file)
    writers: dict[str, Writer] = {}
    with ExitStack() as undo:
        for name, module in modules.items():
            run_id = state.ids.get(name)
            run = TrackedRun(directory, run_name, config, run_id or uuid.uuid4().hex[:8], resumed=run_id is not None)
            try:
                writers[name] = WRITERS[name](module, run)
            except Exception as error:
                raise MetaAgentXError(f"the logger {name} could not start: {_first_line(error)}") from error
            undo.callback(_close, name, writers[name], True)
            state.ids[name] = writers[name].id
        if writers:
            file.parent.mkdir(parents=True, exist_ok=True)
            _write_state(file, state)
        undo.pop_all()
    return Loggers(writers, file)


def check_loggers(names: Sequence[str], directory: Path) -> None:
    """Raise an error for unknown names, missing packages and a damaged `loggers.json`. Imports nothing."""
    for name in names:
        if name not in WRITERS:
            raise MetaAgentXError(f"unknown logger {name!r}, expected one of {', '.join(WRITERS)}")
        package = PACKAGES.get(name, name)
        if package not in sys.modules and importlib.util.find_spec(package) is None:
            raise _missing_package(name, package)
    if names:
        _read_state(directory / "loggers.json")


class Loggers:
    """Several loggers as one context manager. One that fails is named in one warning and tried again at each step."""

    def __init__(self, writers: Mapping[str, Writer], file: Path) -> None:
        self._writers = writers
        self._file = file
        self._state = _read_state(file)
        self._steps_before = dict(self._state.steps)
        self._warned: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for name, writer in self._writers.items():
            _close(name, writer, failed=kind is not None)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log a step's metrics, except to loggers that got the step before the run was resumed."""
        due = [name for name in self._writers if name == "tensorboard" or step > self._steps_before.get(name, -1)]
        for name in due:
            try:
                # Before the step is logged: a kill in between loses a step, and never logs one twice.
                if step != self._state.steps.get(name):
                    self._state.steps[name] = step
                    _write_state(self._file, self._state)
                self._writers[name].log(step, metrics)
            except Exception as error:  # noqa: BLE001 - the boundary: no copy of the metrics is worth a training run
                if name not in self._warned:
                    log.warning(
                        "the logger %s failed at step %d, training continues: %s", name, step, _first_line(error)
                    )
                self._warned.add(name)


class _TensorBoard:
    def __init__(self, module: Any, run: TrackedRun) -> None:
        self.id = run.id
        self._module = module
        self._directory = run.directory / "tensorboard"
        self._writer: Any = None

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        if self._writer is None:
            # `purge_step` hides what older files have from this step on. The suffix keeps two files of the same second
            # apart, in their order.
            self._writer = self._module.SummaryWriter(
                str(self._directory), purge_step=step, filename_suffix=f".{time.time_ns()}"
            )
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self, failed: bool) -> None:
        if self._writer is not None:
            self._writer.close()


class _RunWriter:
    """Logs to a run object, which W&B has and Trackio copies."""

    _run: Any

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)


class _WandB(_RunWriter):
    def __init__(self, module: Any, run: TrackedRun) -> None:
        self.id = run.id
        # Without an account or an explicit mode, nothing is asked and nothing leaves the machine.
        online = "WANDB_MODE" in os.environ or module.login(prompt=False)
        self._run = module.init(
            project=PROJECT,
            name=run.name,
            id=run.id,
            resume="allow",
            dir=str(run.directory),
            config=run.config,
            mode=None if online else "offline",
            # Its capture of the console would conflict with the live display.
            settings=module.Settings(console="off", silent=True),
        )

    def close(self, failed: bool) -> None:
        self._run.finish(exit_code=int(failed))


class _Trackio(_RunWriter):
    def __init__(self, module: Any, run: TrackedRun) -> None:
        # Trackio finds a run by its name, which another run directory may have, too.
        self.id = run.id if run.resumed else f"{run.name}-{run.id}"
        self._module = module
        self._run = module.init(project=PROJECT, name=self.id, resume="allow", config=run.config, embed=False)

    def close(self, failed: bool) -> None:
        self._module.finish()


class _MLflow:
    def __init__(self, module: Any, run: TrackedRun) -> None:
        logging.getLogger("mlflow").setLevel(logging.WARNING)
        logging.getLogger("alembic").setLevel(logging.WARNING)
        self._entities = importlib.import_module("mlflow.entities")
        local = not module.is_tracking_uri_set()
        directory = run.directory.resolve()
        self._client = module.MlflowClient(tracking_uri=f"sqlite:///{directory / 'mlflow.db'}" if local else None)
        if run.resumed:
            self.id = run.id
            self._client.update_run(self.id, status="RUNNING")
            return
        experiment = self._client.get_experiment_by_name(PROJECT)
        artifacts = (directory / "mlflow").as_uri() if local else None
        experiment_id = experiment.experiment_id if experiment else self._client.create_experiment(PROJECT, artifacts)
        self.id = self._client.create_run(experiment_id, run_name=run.name).info.run_id
        params = [self._entities.Param(_mlflow_name(key), value[:6000]) for key, value in _flatten(run.config)]
        for start in range(0, len(params), 100):
            self._client.log_batch(self.id, params=params[start : start + 100])

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        values = [self._entities.Metric(_mlflow_name(name), value, now, step) for name, value in metrics.items()]
        for start in range(0, len(values), 1000):
            self._client.log_batch(self.id, metrics=values[start : start + 1000])

    def close(self, failed: bool) -> None:
        self._client.set_terminated(self.id, "FAILED" if failed else "FINISHED")


WRITERS: dict[str, Callable[[Any, TrackedRun], Writer]] = {
    "tensorboard": _TensorBoard,
    "wandb": _WandB,
    "trackio": _Trackio,
    "mlflow": _MLflow,
}
PACKAGES = {"tensorboard": "tensorboardX"}
"""The packages that are not named like their logger."""


class _State(BaseModel):
    """The content of `loggers.json`: the run of each tracker, and the last step that it got."""

    model_config = ConfigDict(strict=True)

    format: int = 1
    ids: dict[str, str]
    steps: dict[str, int]


def _read_state(file: Path) -> _State:
    try:
        return _State.model_validate_json(file.read_bytes())
    except FileNotFoundError:
        return _State(ids={}, steps={})
    except OSError as error:
        raise MetaAgentXError(path_problem(error, "read") or f"{file} cannot be read: {error}") from error
    except ValueError:
        raise MetaAgentXError(f"{file} is damaged: remove it, and every logger begins a new run") from None


def _write_state(file: Path, state: _State) -> None:
    atomic_write(file, state.model_dump_json().encode())


def _import(name: str) -> Any:
    try:
        return importlib.import_module(PACKAGES.get(name, name))
    except ModuleNotFoundError as error:
        raise _missing_package(name, error.name) from None


def _missing_package(name: str, package: str | None) -> MetaAgentXError:
    return MetaAgentXError(f"the logger {name} needs the package {package}: pip install 'metaagentx[{name}]'")


def _close(name: str, writer: Writer, failed: bool) -> None:
    try:
        writer.close(failed)
    except Exception as error:  # noqa: BLE001 - the boundary, as above
        log.warning("the logger %s could not be closed: %s", name, _first_line(error))


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), "") or type(error).__name__


def _flatten(value: object, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield every value of a nested mapping as text, with its dotted name."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flatten(inner, f"{name}.{key}" if name else str(key))
    else:
        yield name, value if isinstance(value, str) else json.dumps(value)


def _mlflow_name(name: str) -> str:
    """Return a name in the characters that MLflow allows, without parts that are only dots."""
    parts = [part for part in re.sub(r"[^\w\-. :/]", "_", name).split("/") if part.strip(".")]
    return "/".join(parts)[:250]
