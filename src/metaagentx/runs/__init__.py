"""The run directory: all that a run leaves behind, and all that is needed to go on with it. docs/runs.md says more.

    with Run.create(Path("runs/first"), config_text) as run:     # or Run.resume(...), Run.fork(...)
        for step in range(run.next_step, steps):
            run.write_step(step, metrics, rollouts)
            await run.save_checkpoint(step + 1, policies, keep=2)

A run may be killed at any moment. What counts is the newest checkpoint: entering a run goes back to it, so that the
steps after it are done again and come out the same. A run that is not entered is for reading, also while another
process trains it: viewer, evaluation and reports read this directory and nothing else.
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
