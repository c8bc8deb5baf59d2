"""bf16 weights on a CPU, in a process of its own: without this variable, bf16 products kill it on some machines."""

import os
import subprocess
import sys
from pathlib import Path

PRODUCTS = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_FP16"}


def test_what_holds_for_bf16_weights() -> None:
    tests = Path(__file__).with_name("in_bf16.py")
    words = [sys.executable, "-m", "pytest", str(tests), "-p", "no:xdist", "--no-header"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(words, env=environment | PRODUCTS, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
