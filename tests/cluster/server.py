"""SkyRL's server on this machine, in the environment that `make test-cluster` makes."""

import json
import os
import signal
import socket
import subprocess
import time
import urllib.request
from pathlib import Path

READY_SECONDS = 300.0


class SkyRLServer:
    """A server with a directory for its database, its checkpoints and its log. It keeps its port when restarted."""

    def __init__(self, environment: Path, directory: Path, model: Path, micro_batch: int = 4) -> None:
        self.model = model
        self.micro_batch = micro_batch
        self._environment = environment.absolute()
        self._directory = directory
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = int(free.getsockname()[1])
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def log(self) -> str:
        """All that it has said, on one line: it breaks lines anywhere."""
        return " ".join((self._directory / "log").read_text(errors="replace").split())

    def start(self) -> None:
        """Start it and wait until it answers and its engine runs."""
        binaries = self._environment / "bin"
        settings = {"max_lora_adapters": 8, "max_lora_rank": 16, "sample_max_num_sequences": 16}
        words = [str(binaries / "uv"), "run", "--active", "--no-project", "-m", "skyrl.tinker.api"]
        words += ["--host", "127.0.0.1", "--port", str(self._port), "--base-model", str(self.model), "--backend", "jax"]
        words += ["--database-url", f"sqlite:///{self._directory / 'database.sqlite'}"]
        words += ["--checkpoints-base", str(self._directory / "checkpoints")]
        words += ["--backend-config", json.dumps(settings | {"train_micro_batch_size": self.micro_batch})]
        variables = {
            "VIRTUAL_ENV": str(self._environment),
            "PATH": f"{binaries}:{os.environ['PATH']}",
            "JAX_PLATFORMS": "cpu",
            # A restarted server need not compile again.
            "JAX_COMPILATION_CACHE_DIR": str(self._directory / "compiled"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        }
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                words,
                cwd=self._directory,
                env=os.environ | variables,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        started, engines = time.monotonic(), self.log.count("Starting background engine")
        while not (self._answers() and self.log.count("Starting background engine") > engines):
            assert self._process.poll() is None, f"the server ended: {self.log[-2000:]}"
            assert time.monotonic() - started < READY_SECONDS, f"the server did not start: {self.log[-2000:]}"
            time.sleep(0.2)

    def kill(self) -> None:
        """End the server and all that it has started, at once."""
        if self._process is not None:
            try:
                os.killpg(self._process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            self._process.wait()
            self._process = None

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/healthz", timeout=5):
                return True
        except OSError:
            return False
