"""What each page of the viewer shows, as JSON: the server sends it, and the export writes it into its file."""

import time
from collections import OrderedDict
from collections.abc import Mapping
from threading import Lock
from typing import Any

from ..errors import MetaAgentXError
from ..evaluation.names import short_names
from ..types import JSON, Rollout
from . import trees
from .evaluations import evaluations
from .index import TreeIndex, read_tree
from .library import Library
from .search import Query, search

_LIST_SECONDS = 1.0
"""How long the list of runs may take; runs that were not read by then are asked for again by the page."""
_KEPT_TREES = 8


class Pages:
    """The pages over the runs of a library."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self._trees: OrderedDict[tuple[object, ...], Rollout] = OrderedDict()
        self._lock = Lock()

    def runs(self) -> dict[str, Any]:
        """Return the list of runs."""
        deadline = time.monotonic() + _LIST_SECONDS
        shown: list[JSON] = []
        for run in self.library.runs():
            late = time.monotonic() > deadline and not run.metrics.generation
            shown.append({"id": run.identifier, "name": run.name, "loading": True} if late else run.summary())
        return {"root": str(self.library.root), "runs": shown}

    def run(self, run: str) -> dict[str, Any]:
        """Return the head of a run."""
        done, total = self.library.fill(run)
        return {**self.library.run(run).head(), "indexed": done, "files": total}

    def curves(self, run: str, start: int = 0, generation: int = 0) -> dict[str, Any]:
        """Return the metrics of a run as columns."""
        return self.library.run(run).curves(start, generation)

    def log(self, run: str) -> dict[str, Any]:
        """Return the end of the log."""
        return self.library.run(run).log()

    def config(self, run: str) -> dict[str, Any]:
        """Return the configuration."""
        return {"text": self.library.run(run).config_text()}

    def evaluations(self, run: str) -> dict[str, Any]:
        """Return the evaluations."""
        files = self.library.run(run)
        head: Any = files.head()
        found = evaluations(files.directory, head["best"]["step"] if head["best"] else None)
        history = files.history().series("evaluation/solved")
        return {"evaluations": [*found], "held_out": [[step, value] for step, value in history]}

    def steps(self, run: str) -> dict[str, Any]:
        """Return the steps that have trees, with figures of those that are indexed."""
        done, total = self.library.fill(run)
        index = self.library.index(run)
        rows = index.query(
            "SELECT step, count(*), avg(solved), avg(reward), sum(problem IS NOT NULL), min(question) FROM trees "
            "GROUP BY step"
        )
        faults: dict[Any, Any] = dict(index.query("SELECT step, sum(fault != '') FROM executions GROUP BY step"))
        known = {row[0]: [*row[1:], faults.get(row[0], 0)] for row in rows}
        return {"steps": [[step, *known.get(step, [])] for step in index.files()], "indexed": done, "files": total}

    def step(self, run: str, step: int) -> dict[str, Any]:
        """Return the tasks of a step, with the rewards of all executions."""
        index = self.library.index(run)
        index.ensure(step)
        names = ("task", "id", "source", "kind", "question", "problem", "solved", "reward")
        rows = index.query(f"SELECT {', '.join(names)} FROM trees WHERE step = ? ORDER BY task", step)
        tasks: dict[int, dict[str, Any]] = {
            row[0]: {**dict(zip(names, row, strict=True)), "designs": []} for row in rows
        }
        short = short_names({task["source"] for task in tasks.values() if task["source"]})
        for task in tasks.values():
            task["source_name"] = short.get(task["source"], "")
        for number, *design in index.query(
            "SELECT task, design, reward, advantage, pattern, fault, script, tokens FROM designs WHERE step = ? "
            "ORDER BY task, design",
            step,
        ):
            fields = ("design", "reward", "advantage", "pattern", "fault", "script", "tokens")
            tasks[number]["designs"].append({**dict(zip(fields, design, strict=True)), "executions": []})
        for number, design, *execution in index.query(
            "SELECT task, design, execution, reward, solved, fault, calls, tokens, seconds FROM executions "
            "WHERE step = ? ORDER BY task, design, execution",
            step,
        ):
            fields = ("execution", "reward", "solved", "fault", "calls", "tokens", "seconds")
            tasks[number]["designs"][design]["executions"].append(dict(zip(fields, execution, strict=True)))
        steps = [*index.files()]
        return {"step": step, "tasks": [*tasks.values()], **_neighbors(steps, step)}

    def tree(self, run: str, step: int, task: int) -> dict[str, Any]:
        """Return a tree without the texts of its calls."""
        tree, index = self._tree(run, step, task)
        tasks = [row[0] for row in index.query("SELECT task FROM trees WHERE step = ? ORDER BY task", step)]
        others = index.query("SELECT step, task, solved, reward FROM trees WHERE id = ? ORDER BY step", tree.task.id)
        short = short_names([tree.task.source])[tree.task.source]
        return {
            **trees.outline(tree),
            **_neighbors(tasks, task),
            "source_name": short,
            "occurrences": [[*row] for row in others[:200]],
        }

    def execution(self, run: str, step: int, task: int, design: int, execution: int, start: int = 0) -> dict[str, Any]:
        """Return an execution with the texts of its calls."""
        tree, _ = self._tree(run, step, task)
        if not (0 <= design < len(tree.designs) and 0 <= execution < len(tree.designs[design].executions)):
            raise MetaAgentXError(f"task {task} of step {step} has no execution {execution} of a design {design}")
        return trees.execution_page(tree, design, execution, max(0, start))

    def text(self, run: str, step: int, task: int, path: str) -> dict[str, Any]:
        """Return a whole text of a tree."""
        tree, _ = self._tree(run, step, task)
        return {"text": trees.text_at(tree, path)}

    def task(self, run: str, id: str) -> dict[str, Any]:
        """Return where a task is in a run, as far as it is indexed."""
        done, total = self.library.fill(run)
        rows = self.library.index(run).query(
            "SELECT step, task, solved, reward FROM trees WHERE id = ? ORDER BY step LIMIT 1000", id
        )
        return {"occurrences": [[*row] for row in rows], "indexed": done, "files": total}

    def facets(self, run: str = "") -> dict[str, Any]:
        """Return the values that a search can filter by, of a run or of all."""
        facets: dict[str, set[str]] = {"source": set(), "pattern": set(), "fault": set()}
        names = [run] if run else [files.identifier for files in self.library.runs()]
        for name in names[:200]:
            index = self.library.index(name)
            for facet, table in (
                ("source", "trees"),
                ("pattern", "designs"),
                ("fault", "designs"),
                ("fault", "executions"),
            ):
                facets[facet] |= {row[0] for row in index.query(f"SELECT DISTINCT {facet} FROM {table}") if row[0]}
        return {name: sorted(values) for name, values in facets.items()}

    def search(self, parameters: Mapping[str, str]) -> dict[str, Any]:
        """Return what matches a query."""
        return search(self.library, Query.parse(parameters))

    def _tree(self, run: str, step: int, task: int) -> tuple[Rollout, TreeIndex]:
        index = self.library.index(run)
        path = index.ensure(step)
        status = path.stat()
        key = (run, step, task, status.st_ino, status.st_mtime_ns)
        with self._lock:
            if key in self._trees:
                self._trees.move_to_end(key)
                return self._trees[key], index
        try:
            tree = read_tree(index.line(step, task))
        except MetaAgentXError as error:
            raise MetaAgentXError(f"{path.name}, line {task + 1}: {error}") from None
        with self._lock:
            self._trees[key] = tree
            while len(self._trees) > _KEPT_TREES:
                self._trees.popitem(last=False)
        return tree, index


def _neighbors(numbers: list[int], number: int) -> dict[str, Any]:
    """Return the numbers before and after one, for keys and links."""
    before = [each for each in numbers if each < number]
    after = [each for each in numbers if each > number]
    return {"previous": before[-1] if before else None, "next": after[0] if after else None}
