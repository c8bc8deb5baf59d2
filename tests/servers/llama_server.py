"""Serve a GGUF file with llama.cpp, on the loopback address: `python llama_server.py FILE NAME PORT KEY`.

It runs in the environment of `make test-server`, which has xllamacpp; ours has not.
"""

import signal
import sys

import xllamacpp

SLOTS = 2


def main() -> None:
    """Serve until the process is ended."""
    file, name, port, key = sys.argv[1:]
    params = xllamacpp.CommonParams()
    params.model.path = file
    params.model_alias = {name}
    params.api_keys = [key]
    params.hostnames = ["127.0.0.1"]
    params.port = int(port)
    params.n_ctx = 8192 * SLOTS
    params.n_parallel = SLOTS
    # Threads of llama.cpp wait for one another by spinning: beside other work, two were 12 times slower than one.
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    signal.pause()


if __name__ == "__main__":
    main()
