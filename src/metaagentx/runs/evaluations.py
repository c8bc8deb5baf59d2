"""Where the evaluations of a run lie: each in a directory of its own below RUN/evaluation, named after its step."""

from pathlib import Path

FILES = ("evaluation.json", "evaluation.md")


def evaluation_directory(run: Path, step: int) -> Path:
    """Where the evaluation of a checkpoint goes unless another place is named."""
    return run / "evaluation" / f"{step:06d}"


def evaluation_directories(run: Path) -> list[Path]:
    """All directories of a run that hold an evaluation. Earlier versions wrote one into the run's own directory."""
    below = sorted(path for path in (run / "evaluation").glob("*") if not path.name.startswith("."))
    return [path for path in (*below, run) if any((path / name).is_file() for name in FILES)]
