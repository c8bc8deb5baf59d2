"""The command line as a user types it."""

import subprocess
import sys
from pathlib import Path

COMMAND = Path(sys.executable).parent / "metaagentx"


def command(*words: object, seconds: float = 120) -> subprocess.CompletedProcess[str]:
    """Run `metaagentx` with these words."""
    return subprocess.run([COMMAND, *map(str, words)], capture_output=True, text=True, timeout=seconds, check=False)
