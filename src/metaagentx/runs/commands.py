"""The commands that messages tell a person to type."""

import shlex
import shutil
import sys
from pathlib import Path


def resume_command(directory: Path) -> str:
    """What a person types to go on with a run."""
    return command("train", "--resume", directory)


def command(*words: object) -> str:
    """What a person types to call us again from here: our name, or where we are if the shell does not know it."""
    called = Path(sys.argv[0])
    unknown = called.name == "metaagentx" and not shutil.which("metaagentx")
    return shlex.join(map(str, [called if unknown else "metaagentx", *words]))
