"""How fast the viewer opens a large run: python -m benchmarks.viewer [--json].

A made-up run of 1,000 steps with 8 tasks, 4 designs and 4 executions each, written into a temporary directory that is
removed. `open_s`: from the first request for the list of runs until the run's page has its curves, before anything is
indexed; `tree_s`: the slowest of twenty trees, while the index is still being built; `indexed_open_s` and
`indexed_tree_s`: the same with the index; `index_s` and `index_mb`: building it.
"""

import asyncio
import http.client
import json
import os
import shutil
import tempfile
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from benchmarks.report import Demand, report
from benchmarks.sample_run import metrics_of, write_run
from metaagentx.viewer.index import TreeIndex, cache_directory
from metaagentx.viewer.server import view

STEPS = int(os.environ.get("STEPS", "1000"))
MADE = 20
TREES = 20
WORDS = 450
"""Words of each reply, so that the trees have a realistic size."""
DEMANDS = {
    "open_s": Demand(2.0),
    "tree_s": Demand(0.5),
    "indexed_open_s": Demand(2.0),
    "indexed_tree_s": Demand(0.5),
}


class Client:
    """Asks a viewer, over one connection."""

    def __init__(self, url: str) -> None:
        self._token = url.partition("token=")[2]
        self._connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=600)

    def ask(self, name: str, **parameters: object) -> Any:
        """Return the JSON of a page."""
        path = f"/api/{name}?{urlencode(parameters)}"
        self._connection.request("GET", path, headers={"Authorization": f"Bearer {self._token}"})
        return json.loads(self._connection.getresponse().read())


def measure(root: Path) -> dict[str, float]:
    """Return the times of a viewer that has just been started."""
    started: dict[str, Any] = {}
    ready = threading.Event()

    def on_start(url: str, server: Any) -> None:
        started.update(url=url, server=server)
        ready.set()

    thread = threading.Thread(target=lambda: asyncio.run(view(root, port=0, on_start=on_start)))
    thread.start()
    ready.wait()
    client = Client(started["url"])
    begin = time.perf_counter()
    client.ask("runs")
    client.ask("run", run="run")
    client.ask("curves", run="run")
    opened = time.perf_counter() - begin
    slowest = 0.0
    for number in range(TREES):
        step = (number * 7919) % STEPS
        begin = time.perf_counter()
        client.ask("tree", run="run", step=step, task=number % 8)
        client.ask("execution", run="run", step=step, task=number % 8, design=0, execution=0)
        slowest = max(slowest, time.perf_counter() - begin)
    started["server"].stop()
    thread.join()
    return {"open_s": opened, "tree_s": slowest}


def write_large_run(directory: Path) -> Path:
    """Write the run: some steps are made, and the others have copies of their trees."""
    made = min(STEPS, MADE)
    run = write_run(directory, made, tasks=8, words=WORDS)
    with (run / "metrics.jsonl").open("a") as metrics:
        for step in range(made, STEPS):
            metrics.write(json.dumps({**metrics_of(step), "step": step, "format": 1}) + "\n")
            shutil.copyfile(run / "rollouts" / f"{step % made:06d}.jsonl", run / "rollouts" / f"{step:06d}.jsonl")
    return run


def main() -> None:
    """Write the run, measure, and print."""
    with tempfile.TemporaryDirectory() as directory:
        os.environ["XDG_CACHE_HOME"] = f"{directory}/cache"
        run = write_large_run(Path(directory) / "runs" / "run")
        size = sum(file.stat().st_size for file in (run / "rollouts").iterdir())
        figures = measure(run.parent)
        begin = time.perf_counter()
        index = TreeIndex(run, cache_directory())
        missing = index.outdated()
        for step in missing:
            index.ensure(step)
        figures["index_s"] = time.perf_counter() - begin
        figures["index_mb"] = index.megabytes
        index.close()
        figures |= {f"indexed_{name}": value for name, value in measure(run.parent).items()}
    report({**figures, "trees_mb": size / 1e6}, DEMANDS, __doc__)


if __name__ == "__main__":
    main()
