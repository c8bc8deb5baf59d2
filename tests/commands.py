"""The command line as a user types it."""

import subprocess
import sys
from pathlib import Path

COMMAND = Path(sys.executable).parent / "metaagentx"


def command(*words: object) -> subprocess.CompletedProcess[str]:
    """Run `metaagentx` with these words."""
    return subprocess.run([COMMAND, *map(str, words)], capture_output=True, text=True, timeout=120, check=False)
