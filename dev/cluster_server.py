"""The environment of the server for `make test-cluster`: `python3.12 -m dev.cluster_server .venv-cluster`.

SkyRL serves the Tinker API. It wants Python 3.12 and an older transformers than ours, so it never shares our
environment. Your pip settings count here as in install.py.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

from dev.install import cache_settings, create, fail, install_uv, uv_settings, works

PACKAGES = ("skyrl[tinker,jax]==0.3.0", "tinker==0.22.7", "uv")


def main() -> None:
    """Create or complete the environment named on the command line."""
    started = time.monotonic()
    if sys.version_info[:2] != (3, 12):
        fail("the server needs Python 3.12: make test-cluster CLUSTER_PYTHON=/path/to/python3.12")
    environment = Path(sys.argv[1]).absolute()
    python = environment / "bin" / "python"
    print(f"Setting up {environment.name} with Python {sys.version.split()[0]} (7 GB)", flush=True)
    if not works(python, "import sys; sys.exit(sys.version_info[:2] != (3, 12))"):
        create(environment)
    if not works(python, "import uv; uv.find_uv_bin()"):
        install_uv(python)
    settings, variables = uv_settings(python)
    variables |= cache_settings(environment)
    uv = [str(python), "-m", "uv", "pip", "install", "--python", str(python), *settings, *PACKAGES]
    if subprocess.run(uv, env=os.environ | variables, check=False).returncode:
        fail("the server's packages could not be installed: the lines above say which one and why")
    print(f"Set up in {time.monotonic() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main()
