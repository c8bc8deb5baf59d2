"""Copies of a run's metrics for the tools people watch runs with: TensorBoard, Weights & Biases, Trackio, MLflow.

Each package is imported when it is asked for and not before. What is missing or misnamed is an error before training
begins; what fails later is one warning, and training goes on. `loggers.json` in the run directory remembers each
tool's run and the last step it was given, so that a resumed run goes on in the same place and logs no step twice.
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

from .errors import MetaAgentXError, path_problem

log = logging.getLogger(__name__)

PROJECT = "metaagentx"


@dataclass(frozen=True, slots=True)
class Run:
    """What a tool is told about the run it logs."""

    directory: Path
    name: str
    config: Mapping[str, object]
    id: str
    """The tool's own name for it."""
    resumed: bool


class Writer(Protocol):
    """One tool, open for one run."""

    @property
    def id(self) -> str:
        """The tool's own name for the run."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write a step's metrics. May be called again for the same step."""

    def close(self, failed: bool) -> None:
        """Write what is still held back, and say how the run ended."""


def open_loggers(names: Sequence[str], directory: Path, run_name: str, config: Mapping[str, object]) -> "Loggers":
    """The loggers of these names, on the runs they had before if `directory` knows of any."""
    check_loggers(names, directory)
    modules = {name: _import(name) for name in dict.fromkeys(names)}
    state = _State.read(directory / "loggers.json")
    opened: dict[str, Writer] = {}
    with ExitStack() as undo:
        for name, module in modules.items():
            run_id = state.ids.get(name)
            run = Run(directory, run_name, _plain(config), run_id or uuid.uuid4().hex[:8], resumed=run_id is not None)
            try:
                opened[name] = WRITERS[name](module, run)
            except Exception as error:
                raise MetaAgentXError(f"the logger {name} could not start: {_line(error)}") from error
            undo.callback(_close, name, opened[name], True)
            state.ids[name] = opened[name].id
        if opened:
            state.write()
        undo.pop_all()
    return Loggers(opened, state)


def check_loggers(names: Sequence[str], directory: Path) -> None:
    """Refuse names of no logger, packages that are not there, and a damaged memory of earlier runs. Imports nothing."""
    for name in names:
        if name not in WRITERS:
            raise MetaAgentXError(f"there is no logger {name!r}; there are {', '.join(WRITERS)}")
        package = PACKAGES.get(name, name)
        if package not in sys.modules and importlib.util.find_spec(package) is None:
            raise _not_there(name, package)
    if names:
        _State.read(directory / "loggers.json")


class Loggers:
    """Several loggers as one. Leaving it closes them; one that fails is named in one warning and tried again."""

    def __init__(self, writers: Mapping[str, Writer], state: "_State") -> None:
        self._writers = writers
        self._state = state
        self._before = dict(state.steps)
        self._warned: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for name, writer in self._writers.items():
            _close(name, writer, failed=kind is not None)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Give a step's metrics to all; those that had the step before the run was resumed are passed over."""
        due = [name for name in self._writers if name == "tensorboard" or step > self._before.get(name, -1)]
        for name in due:
            try:
                # Before the step is logged: a kill in between costs a step here and there, and never doubles one.
                self._state.reached(name, step)
                self._writers[name].log(step, metrics)
            except Exception as error:  # noqa: BLE001 - the boundary: no copy of the metrics is worth a training run
                if name not in self._warned:
                    log.warning("the logger %s failed at step %d, training goes on: %s", name, step, _line(error))
                self._warned.add(name)


class _TensorBoard:
    def __init__(self, module: Any, run: Run) -> None:
        self.id = run.id
        self._module = module
        self._directory = run.directory / "tensorboard"
        self._writer: Any = None

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        if self._writer is None:
            # From this step on, whatever older files say is void: TensorBoard shows what is logged now. The suffix
            # keeps apart two files of the same second, in their order.
            self._writer = self._module.SummaryWriter(
                str(self._directory), purge_step=step, filename_suffix=f".{time.time_ns()}"
            )
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self, failed: bool) -> None:
        if self._writer is not None:
            self._writer.close()


class _WandB:
    def __init__(self, module: Any, run: Run) -> None:
        self.id = run.id
        # Without an account or a word of the user's, nothing is asked and nothing leaves the machine.
        chosen = "WANDB_MODE" in os.environ or module.login(prompt=False)
        self._run = module.init(
            project=PROJECT,
            name=run.name,
            id=run.id,
            resume="allow",
            dir=str(run.directory),
            config=run.config,
            mode=None if chosen else "offline",
            # Its capture of the console would fight with the live display over the terminal.
            settings=module.Settings(console="off", silent=True),
        )

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def close(self, failed: bool) -> None:
        self._run.finish(exit_code=int(failed))


class _Trackio:
    def __init__(self, module: Any, run: Run) -> None:
        # Trackio finds a run again by its name, which another run directory may have, too.
        self.id = run.id if run.resumed else f"{run.name}-{run.id}"
        self._module = module
        self._run = module.init(project=PROJECT, name=self.id, resume="allow", config=run.config, embed=False)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def close(self, failed: bool) -> None:
        self._module.finish()


class _MLflow:
    def __init__(self, module: Any, run: Run) -> None:
        logging.getLogger("mlflow").setLevel(logging.WARNING)
        logging.getLogger("alembic").setLevel(logging.WARNING)
        self._entities = importlib.import_module("mlflow.entities")
        local = not module.is_tracking_uri_set()
        place = run.directory.resolve()
        self._client = module.MlflowClient(tracking_uri=f"sqlite:///{place / 'mlflow.db'}" if local else None)
        if run.resumed:
            self.id = run.id
            self._client.update_run(self.id, status="RUNNING")
            return
        experiment = self._client.get_experiment_by_name(PROJECT)
        artifacts = (place / "mlflow").as_uri() if local else None
        experiment_id = experiment.experiment_id if experiment else self._client.create_experiment(PROJECT, artifacts)
        self.id = self._client.create_run(experiment_id, run_name=run.name).info.run_id
        params = [self._entities.Param(_mlflow_name(key), value[:6000]) for key, value in _flat(run.config)]
        for start in range(0, len(params), 100):
            self._client.log_batch(self.id, params=params[start : start + 100])

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        values = [self._entities.Metric(_mlflow_name(name), value, now, step) for name, value in metrics.items()]
        for start in range(0, len(values), 1000):
            self._client.log_batch(self.id, metrics=values[start : start + 1000])

    def close(self, failed: bool) -> None:
        self._client.set_terminated(self.id, "FAILED" if failed else "FINISHED")


WRITERS: dict[str, Callable[[Any, Run], Writer]] = {
    "tensorboard": _TensorBoard,
    "wandb": _WandB,
    "trackio": _Trackio,
    "mlflow": _MLflow,
}
PACKAGES = {"tensorboard": "tensorboardX"}


@dataclass(slots=True)
class _State:
    """Of each tool: its run, and the last step it was given."""

    file: Path
    ids: dict[str, str]
    steps: dict[str, int]

    @classmethod
    def read(cls, file: Path) -> "_State":
        try:
            known = json.loads(file.read_bytes())
            ids, steps = known["ids"], known["steps"]
        except FileNotFoundError:
            ids, steps = {}, {}
        except OSError as error:
            raise MetaAgentXError(path_problem(error, "read") or f"{file} cannot be read: {error}") from error
        except (ValueError, RecursionError, KeyError, TypeError):
            ids = steps = None
        if not (_is_table(ids, str) and _is_table(steps, int)):
            raise MetaAgentXError(f"{file} is damaged: remove it, and every logger begins a new run of its own")
        return cls(file, ids, steps)

    def reached(self, name: str, step: int) -> None:
        if step != self.steps.get(name):
            self.steps[name] = step
            self.write()

    def write(self) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        draft = self.file.with_suffix(".tmp")
        draft.write_text(json.dumps({"format": 1, "ids": self.ids, "steps": self.steps}))
        draft.replace(self.file)


def _import(name: str) -> Any:
    package = PACKAGES.get(name, name)
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        raise _not_there(name, error.name) from None


def _not_there(name: str, package: str | None) -> MetaAgentXError:
    fix = f"pip install 'metaagentx[{name}]'"
    return MetaAgentXError(f"the logger {name} needs a package that is not there ({package}): {fix}")


def _is_table(value: object, kind: type) -> bool:
    return isinstance(value, dict) and all(type(entry) is kind for entry in value.values())


def _close(name: str, writer: Writer, failed: bool) -> None:
    try:
        writer.close(failed)
    except Exception as error:  # noqa: BLE001 - the boundary, as above
        log.warning("the logger %s could not be closed: %s", name, _line(error))


def _line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), "") or type(error).__name__


def _plain(config: Mapping[str, object]) -> dict[str, object]:
    """The config as JSON has it; what JSON has no form for becomes its text."""
    plain = json.loads(json.dumps(dict(config), default=lambda value: dict(value) if _mapping(value) else str(value)))
    assert isinstance(plain, dict)
    return plain


def _mapping(value: object) -> bool:
    return isinstance(value, Mapping)


def _flat(value: object, name: str = "") -> Iterator[tuple[str, str]]:
    """Names with dots, and values as text."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(inner, f"{name}.{key}" if name else str(key))
    else:
        yield name, value if isinstance(value, str) else json.dumps(value)


def _mlflow_name(name: str) -> str:
    """In the characters that MLflow allows, and as a path that goes nowhere else."""
    parts = [part for part in re.sub(r"[^\w\-. :/]", "_", name).split("/") if part.strip(".")]
    return "/".join(parts)[:250]
