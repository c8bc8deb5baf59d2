"""The directories of a run's evaluations: RUN/evaluation/STEP."""

from pathlib import Path

FILES = ("evaluation.json", "evaluation.md")


def evaluation_directory(run: Path, step: int) -> Path:
    """Return the default directory for the evaluation of a checkpoint."""
    return run / "evaluation" / f"{step:06d}"


def evaluation_directories(run: Path) -> list[Path]:
    """Return all directories that hold an evaluation of a run; earlier versions wrote one into the run directory."""
    below = sorted(path for path in (run / "evaluation").glob("*") if not path.name.startswith("."))
    return [path for path in (*below, run) if any((path / name).is_file() for name in FILES)]
