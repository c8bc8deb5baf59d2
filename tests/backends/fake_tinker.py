"""A server of the Tinker API in a thread: it computes with a small model of the local backend and behaves as SkyRL's
server on JAX was seen to, faults included. tests/cluster checks one against the other."""

import copy
import io
import json
import tarfile
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal

import metaagentx.backends.local.threads  # noqa: F401  before torch

# isort: split
import torch
from torch import Tensor

from metaagentx.backends.local.model import LocalModel, LoraOptions, load_model
from metaagentx.backends.local.training import trained_weights

ALPHA = 32


class Refused(Exception):
    """A request that ends with this status."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


class _Lora:
    """An adapter with its optimizer, and the weights that were last loaded for sampling."""

    def __init__(self, model: LocalModel, rank: int) -> None:
        self.model = model
        self.rank = rank
        # By the names that peft's files have, without the adapter's.
        self.weights = {name.replace(f".{model.adapter}.", "."): w for name, w in trained_weights(model).items()}
        self.optimizer = torch.optim.AdamW(self.weights.values(), lr=0.0)
        self.gradients: dict[str, Tensor] = {}
        self.sequences = 0
        self.loaded = ""

    def copy(self) -> dict[str, Any]:
        weights = {name: weight.detach().clone() for name, weight in self.weights.items()}
        return {"weights": weights, "optimizer": copy.deepcopy(self.optimizer.state_dict()), "rank": self.rank}

    def restore(self, saved: dict[str, Any], *, optimizer: bool) -> None:
        with torch.no_grad():
            for name, weight in self.weights.items():
                weight.copy_(saved["weights"][name])
        if optimizer:
            self.optimizer.load_state_dict(copy.deepcopy(saved["optimizer"]))


class FakeTinker:
    """The server's state. `reduction`: how losses of tokens become one. `key`: the only one that is accepted."""

    def __init__(
        self, model: Path, *, reduction: Literal["mean", "sum"] = "mean", max_adapters: int = 8, key: str = ""
    ) -> None:
        self.path = model
        self.reduction = reduction
        self.max_adapters = max_adapters
        self.key = key
        self.sample_seconds = 0.0
        """How long the server takes for a sample."""
        self.hangs = ""
        """A kind of request that is never answered."""
        self.fails = ""
        """A kind of request that the engine fails at."""
        self.failures_left = 10**9
        self.requests: list[str] = []
        self.counts: list[int] = []
        """The number of sequences in each request to train or score."""
        self.loras: dict[str, _Lora] = {}
        self.saved: dict[str, dict[str, Any]] = {}
        self._base = load_model(model, device="cpu")
        self._results: dict[str, tuple[float, Any]] = {}
        self._samplers: dict[str, tuple[str, str]] = {}
        self._created = 0
        self._lock = threading.Lock()
        self._sampling_until = 0.0
        self.stepped_while_sampling = False

    def restart(self) -> None:
        """What a restart with the same database and files leaves."""
        self.loras.clear()
        self._samplers.clear()

    def handle(self, name: str, body: dict[str, Any]) -> Any:
        """Answer a request, or raise `Refused`."""
        self.requests.append(name)
        if name == "retrieve_future":
            return self._retrieve(body["request_id"])
        plain: dict[str, Any] = {
            "healthz": {"status": "ok"},
            "client/config": {"pjwt_auth_enabled": False},
            "create_session": {"type": "create_session", "session_id": "session_1"},
            "session_heartbeat": {"type": "session_heartbeat"},
            "telemetry": {"status": "accepted"},
            "get_server_capabilities": {"supported_models": [{"model_name": str(self.path)}]},
        }
        if name in plain:
            return plain[name]
        with self._lock:
            number = str(len(self._results) + 1)
            work = getattr(self, f"_{name}", None)
            if work is None:
                raise Refused(404, "Not Found")
            answer: dict[str, Any] = {"request_id": number, "future_id": number, "status": "pending"}
            if name == "create_model":
                self._created += 1
                answer |= {"model_id": f"model_{self._created}", "base_model": str(self.path)}
                body = body | {"model_id": answer["model_id"]}
            elif name != "asample" and body["model_id"] not in self.loras:
                raise Refused(404, "Model not found")
            ready = time.monotonic() + (self.sample_seconds if name == "asample" else 0.0)
            try:
                if self.fails == name and self.failures_left > 0:
                    self.failures_left -= 1
                    raise ValueError("out of memory")
                result: Any = None if self.hangs == name else work(body)
            except ValueError as error:
                result = Refused(400, str(error))
            self._results[number] = ready, result
            return answer

    def _retrieve(self, number: str) -> Any:
        if number not in self._results:
            raise Refused(404, "Future not found")
        ready, result = self._results[number]
        wait = min(ready - time.monotonic(), 2.0) if result is not None else 2.0
        time.sleep(max(0.0, wait))
        if result is None or time.monotonic() < ready:
            raise Refused(408, "Timeout waiting for result")
        if isinstance(result, Refused):
            raise result
        return result

    def _create_model(self, body: dict[str, Any]) -> Any:
        if len(self.loras) >= self.max_adapters - 1:
            raise ValueError(f"Maximum number of LoRA adapters ({self.max_adapters}) reached")
        rank, seed = body["lora_config"]["rank"], body["lora_config"]["seed"]
        if not 0 < rank <= 16:
            raise ValueError(f"LoRA rank {rank} must be between 1 and 16")
        torch.manual_seed(seed)
        adapter = self._base.with_adapter(body["model_id"], LoraOptions(rank, ALPHA))
        self.loras[body["model_id"]] = _Lora(adapter, rank)
        return {"model_id": body["model_id"], "base_model": str(self.path), "lora_config": {"rank": rank}}

    def _unload_model(self, body: dict[str, Any]) -> Any:
        del self.loras[body["model_id"]]
        return {"model_id": body["model_id"], "status": "unloaded"}

    def _forward(self, body: dict[str, Any]) -> Any:
        return self._pass(body["model_id"], body["forward_input"], train=False)

    def _forward_backward(self, body: dict[str, Any]) -> Any:
        return self._pass(body["model_id"], body["forward_backward_input"], train=True)

    def _pass(self, model_id: str, work: dict[str, Any], *, train: bool) -> Any:
        lora, outputs = self.loras[model_id], []
        data = work["data"]
        self.counts.append(len(data))
        self._activate(lora)
        for datum in data:
            tokens = [token for chunk in datum["model_input"]["chunks"] for token in chunk["tokens"]]
            inputs = {name: value["data"] for name, value in datum["loss_fn_inputs"].items()}
            targets = torch.tensor(inputs["target_tokens"])
            logits = lora.model.module(input_ids=torch.tensor([tokens])).logits[0].float()
            logprobs = logits.log_softmax(-1).gather(-1, targets[:, None])[:, 0]
            mask = torch.tensor(inputs.get("weights", [1.0] * len(targets)))
            if work["loss_fn"] == "cross_entropy":
                losses = -logprobs * mask
            else:
                ratio = (logprobs - torch.tensor(inputs["logprobs"])).exp()
                losses = -ratio * torch.tensor(inputs["advantages"]) * mask
            if train:
                loss = losses.sum() / (mask.sum() if self.reduction == "mean" else 1.0)
                found = torch.autograd.grad(loss, list(lora.weights.values()))
                for name, gradient in zip(lora.weights, found, strict=True):
                    lora.gradients[name] = lora.gradients[name] + gradient if name in lora.gradients else gradient
                lora.sequences += 1
            rows = {"elementwise_loss": losses, "logprobs": logprobs}
            outputs.append(
                {
                    name: {"data": row.tolist(), "dtype": "float32", "shape": [len(targets)]}
                    for name, row in rows.items()
                }
            )
        return {"loss_fn_output_type": "scalar", "loss_fn_outputs": outputs, "metrics": {}}

    def _optim_step(self, body: dict[str, Any]) -> Any:
        lora, adam = self.loras[body["model_id"]], body["adam_params"]
        self.stepped_while_sampling |= time.monotonic() < self._sampling_until
        count = lora.sequences if self.reduction == "mean" else 1
        gradients = {name: gradient / count for name, gradient in lora.gradients.items()}
        norm = float(torch.nn.utils.get_total_norm(gradients.values()))
        group = lora.optimizer.param_groups[0]
        group |= {"lr": adam["learning_rate"], "betas": (adam["beta1"], adam["beta2"])}
        group |= {"eps": adam["eps"], "weight_decay": adam["weight_decay"]}  # and no clipping
        for name, weight in lora.weights.items():
            weight.grad = gradients[name]
        lora.optimizer.step()
        lora.optimizer.zero_grad(set_to_none=True)
        lora.gradients, lora.sequences = {}, 0
        return {"metrics": {"skyrl.ai/grad_norm": norm, "skyrl.ai/learning_rate": adam["learning_rate"]}}

    def _save_weights(self, body: dict[str, Any]) -> Any:
        path = f"tinker://{body['model_id']}/weights/{body['path']}"
        self.saved[path] = self.loras[body["model_id"]].copy()
        return {"path": path, "type": "save_weights"}

    def _load_weights(self, body: dict[str, Any]) -> Any:
        lora = self.loras[body["model_id"]]
        if body["path"] not in self.saved:
            raise ValueError(f"Checkpoint not found: {body['path']}")
        lora.restore(self.saved[body["path"]], optimizer=body["optimizer"])
        return {"type": "load_weights"}

    def _save_weights_for_sampler(self, body: dict[str, Any]) -> Any:
        model_id, session, path = body["model_id"], None, None
        name = body.get("path") or f"ss{body['sampling_session_seq_id']}_seq{body['seq_id']}"
        self.saved[f"{model_id}/{name}"] = self.loras[model_id].copy()
        if body.get("sampling_session_seq_id") is not None:
            session = f"sampling_{len(self._samplers) + 1}"
            self._samplers[session] = model_id, name
        else:
            path = f"tinker://{model_id}/{name}"
        return {"path": path, "type": "save_weights_for_sampler", "sampling_session_id": session}

    def _asample(self, body: dict[str, Any]) -> Any:
        model_id, name = self._samplers.get(body["sampling_session_id"], ("", ""))
        if model_id not in self.loras:
            raise ValueError(f"Model {model_id} not loaded")
        lora, params = self.loras[model_id], body["sampling_params"]
        if lora.loaded != name:  # as on JAX: the trainer gets these weights, too
            lora.restore(self.saved[f"{model_id}/{name}"], optimizer=False)
            lora.loaded = name
        self._sampling_until = max(self._sampling_until, time.monotonic() + self.sample_seconds)
        self._activate(lora)
        tokens = [token for chunk in body["prompt"]["chunks"] for token in chunk["tokens"]]
        start, logprobs, seed = len(tokens), list[float](), params.get("seed")
        random = torch.Generator().manual_seed(seed) if seed is not None else None
        with torch.no_grad():
            for _ in range(params["max_tokens"]):
                logits = lora.model.module(input_ids=torch.tensor([tokens])).logits[0, -1].float()
                row = logits.log_softmax(-1)
                scaled = (logits / (params["temperature"] or 1e-6)).softmax(-1)
                tokens.append(int(torch.multinomial(scaled, 1, generator=random)))
                logprobs.append(float(row[tokens[-1]]))
                if tokens[-1] in (params.get("stop") or ()):
                    break
        stop = "stop" if tokens[-1] in (params.get("stop") or ()) else "length"
        sequence = {"stop_reason": stop, "tokens": tokens[start:], "logprobs": logprobs}
        return {"sequences": [sequence], "prompt_logprobs": None}

    def _activate(self, lora: _Lora) -> None:
        lora.model.module.set_adapter(lora.model.adapter)
        for weight in lora.weights.values():
            weight.requires_grad_(True)

    def archive(self, model_id: str, name: str) -> bytes:
        """Return saved sampler weights as the server packs them: without the layers in the config."""
        saved = self.saved.get(f"{model_id}/{name}")
        if saved is None:
            raise Refused(404, f"Checkpoint not found: {model_id}/{name}")
        from safetensors.torch import save_file

        buffer = io.BytesIO()
        with tempfile.TemporaryDirectory() as temporary, tarfile.open(fileobj=buffer, mode="w:gz") as archive:
            directory = Path(temporary)
            save_file(saved["weights"], directory / "adapter_model.safetensors")
            config = {"peft_type": "LORA", "r": saved["rank"], "lora_alpha": ALPHA, "target_modules": None}
            (directory / "adapter_config.json").write_text(json.dumps(config))
            for file in sorted(directory.iterdir()):
                archive.add(file, file.name)
        return buffer.getvalue()


@contextmanager
def serve(fake: FakeTinker, port: int = 0) -> Iterator[str]:
    """Serve in threads; yield the URL. Leaving the block is the server's death."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            parts = self.path.strip("/").split("/")
            if parts[-1] == "archive":
                self.send_response(302)
                self.send_header("Location", f"http://{self.headers['Host']}{self.path.replace('archive', 'download')}")
                self.send_header("Expires", "Wed, 18 Nov 2099 10:00:00 GMT")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self._reply(lambda: fake.archive(parts[3], parts[5]) if parts[-1] == "download" else self._json({}))

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
            self._reply(lambda: self._json(body))

        def _json(self, body: dict[str, Any]) -> bytes:
            name = self.path.removeprefix("/api/v1/")
            if fake.key and self.headers.get("X-API-Key") != fake.key and name != "healthz":
                raise Refused(401, "invalid key")
            return json.dumps(fake.handle(name, body)).encode()

        def _reply(self, work: Any) -> None:
            try:
                status, content = 200, work()
            except Refused as refused:
                status, content = refused.status, json.dumps({"detail": str(refused)}).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    class Threads(ThreadingHTTPServer):
        daemon_threads = True
        allow_reuse_address = True

        def handle_error(self, *_: object) -> None:
            """A client that went away is no fault."""

    server = Threads(("127.0.0.1", port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
