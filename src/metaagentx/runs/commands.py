"""The commands that messages tell a person to type."""

import shlex
import shutil
import sys
from pathlib import Path


def resume_command(directory: Path) -> str:
    """Return the command that resumes a run."""
    return command("train", "--resume", directory)


def command(*words: object) -> str:
    """Return a metaagentx command line for a person to type, with the path of the program if it is not on PATH."""
    program = Path(sys.argv[0])
    not_on_path = program.name == "metaagentx" and not shutil.which("metaagentx")
    return shlex.join(map(str, [program if not_on_path else "metaagentx", *words]))
