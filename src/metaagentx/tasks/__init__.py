"""Tasks from published benchmarks, generators and users' own files. docs/tasks.md is the manual.

`load("gsm8k", "train")` returns a TaskSet; `Mixture("0.5*gsm8k + 0.5*codecontests", seed=0).batch(step, 8)` returns the
tasks of a training step. Importing this package needs only the standard library: reasoning-gym, pyarrow and datasets
are imported when a source needs them.
"""

from .load import DATA_DIR, SOURCES, load
from .mixture import Mixture
from .overlap import Shared, overlap
from .rows import TaskError
from .taskset import TaskSet

__all__ = ["DATA_DIR", "SOURCES", "Mixture", "Shared", "TaskError", "TaskSet", "load", "overlap"]
