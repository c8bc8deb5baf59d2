"""The run directory: everything that a run writes and that resuming it needs. docs/runs.md describes the files.

    with Run.create(Path("runs/first"), config_text) as run:     # or Run.resume(...), Run.fork(...)
        for step in range(run.next_step, steps):
            run.write_step(step, metrics, rollouts)
            await run.save_checkpoint(step + 1, policies, keep=2)

A run may be killed at any moment. The newest checkpoint counts: entering a run restores it, and the steps after it are
done again with the same result. A run that is not entered can be read, also while another process trains it: evaluation
and viewer read this directory and nothing else.
"""

from .commands import command, resume_command
from .evaluations import evaluation_directories, evaluation_directory
from .records import Best
from .run import Run
from .trees import rollout_from_json, rollout_to_json

__all__ = [
    "Best",
    "Run",
    "command",
    "evaluation_directories",
    "evaluation_directory",
    "resume_command",
    "rollout_from_json",
    "rollout_to_json",
]
