"""The command line as a user types it."""

import subprocess
import sys
from pathlib import Path


def command(*words: object) -> subprocess.CompletedProcess[str]:
    """Run `metaagentx` with these words."""
    path = Path(sys.executable).parent / "metaagentx"
    return subprocess.run([path, *map(str, words)], capture_output=True, text=True, timeout=120, check=False)
