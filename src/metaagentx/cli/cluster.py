"""`metaagentx cluster command`: how to start a server of the Tinker API for a recipe, and the run beside it."""

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from ..config import Config

Engine = Literal["fsdp", "megatron", "jax"]
SERVER = "skyrl[tinker,{extra}]==0.3.0"
PORT = 8000
COORDINATOR = 7777

cluster_app = typer.Typer(help="Train on a cluster.", no_args_is_help=True, add_completion=False)


@cluster_app.callback()
def cluster() -> None:
    """Train on a cluster, through a server of the Tinker API."""


@cluster_app.command()
def command(
    recipe: Annotated[str, typer.Argument(help="Recipe file or name.")],
    gpus: Annotated[int, typer.Option(help="GPUs of each node.", min=1, max=64)] = 8,
    nodes: Annotated[int, typer.Option(help="Nodes.", min=1, max=1024)] = 1,
    engine: Annotated[Engine, typer.Option(help="The server's engine.")] = "fsdp",
    rank: Annotated[int, typer.Option(help="Rank of the LoRA, if the recipe has none.", min=1)] = 32,
) -> None:
    """Print the commands that start a server for this recipe, and the one that trains on it. Nothing is started."""
    from ..config import load_recipe
    from ..config.bundled import find_recipe

    config = load_recipe(find_recipe(recipe), []).config
    for line in commands(config, recipe, gpus, nodes, engine, config.model.lora_rank or rank):
        typer.echo(line)


def commands(config: "Config", recipe: str, gpus: int, nodes: int, engine: Engine, rank: int) -> list[str]:
    """Return the commands, with a comment above each."""
    from ..errors import MetaAgentXError

    model = config.model
    loras = (1 if model.sharing == "shared" else 2) + (config.loss.kl > 0)
    if engine == "fsdp" and loras > 1:
        raise MetaAgentXError(
            f"this recipe needs {loras} LoRAs, and FSDP has one: choose --engine megatron or jax, or set "
            'model.sharing = "shared" and loss.kl = 0'
        )
    directory = Path(model.path).absolute()
    settings = _server_settings(config, gpus, nodes, engine, rank, loras)
    server = ["uv", "run", "--active", "--no-project", "-m", "skyrl.tinker.api", "--host", "127.0.0.1"]
    server += ["--port", str(PORT), "--base-model", str(directory), "--backend", engine]
    server += ["--database-url", "sqlite:////shared/metaagentx/tinker.sqlite"]
    server += ["--checkpoints-base", "/shared/metaagentx/checkpoints", "--backend-config", json.dumps(settings)]
    changes = {"model.backend": "tinker", "model.base_url": f"http://localhost:{PORT}", "model.lora_rank": rank}
    changes |= {"model.sharing": "shared"} if model.sharing == "separate" else {}
    changes |= {"model.micro_batch": _micro_batch(config)} if _micro_batch(config) != model.micro_batch else {}
    train = ["metaagentx", "train", recipe]
    for key, value in changes.items():
        train += ["--set", f"{key}={json.dumps(value)}"]
    extra = "jax" if engine == "jax" else engine
    lines = [
        "# On every node, an environment of its own with Python 3.12; /shared is a directory that all nodes see:",
        f"python3.12 -m venv /shared/server && /shared/server/bin/pip install {shlex.quote(SERVER.format(extra=extra))}"
        " tinker==0.22.7 uv",
        "source /shared/server/bin/activate",
    ]
    if nodes > 1 and engine != "jax":
        lines += [
            "# Ray, on the first node and then on each of the others:",
            "ray start --head --port 6379",
            "ray start --address FIRST_NODE:6379",
        ]
    lines += ["# The server, on the first node:", shlex.join(server)]
    if nodes > 1 and engine == "jax":
        lines += [
            "# On each of the other nodes, with numbers from 1 on:",
            f"python -m skyrl.backends.jax --coordinator-address FIRST_NODE:{COORDINATOR} --num-processes {nodes} "
            "--process-id 1",
        ]
    return [
        *lines,
        "# The run, on the first node. The server asks for no key, so it listens there only:",
        shlex.join(train),
    ]


def _micro_batch(config: "Config") -> int:
    """Return the recipe's micro-batch, or its mini-batch if that is smaller: filling it up would be for nothing."""
    return min(config.model.micro_batch, config.optimizer.minibatch or config.model.micro_batch)


def _server_settings(
    config: "Config", gpus: int, nodes: int, engine: Engine, rank: int, loras: int
) -> dict[str, object]:
    if engine == "jax":
        settings: dict[str, object] = {
            "max_lora_adapters": loras + 3,  # the first one is the model itself, and a restarted run needs room
            "max_lora_rank": rank,
            "sample_max_num_sequences": config.rollout.in_flight,
            "train_micro_batch_size": _micro_batch(config),
            "fully_sharded_data_parallel_size": gpus * nodes,
        }
        return settings | (
            {"coordinator_address": f"FIRST_NODE:{COORDINATOR}", "num_processes": nodes} if nodes > 1 else {}
        )
    settings = {
        "trainer.placement.policy_num_nodes": nodes,
        "trainer.placement.policy_num_gpus_per_node": gpus,
        "generator.inference_engine.num_engines": gpus * nodes,
    }
    if engine == "megatron" and loras > 1:
        # Several LoRAs: training and sampling have GPUs of their own, and vLLM keeps the LoRAs apart.
        trained = max(1, gpus // 2)
        settings |= {
            "trainer.placement.colocate_all": False,
            "trainer.placement.policy_num_gpus_per_node": trained,
            "generator.inference_engine.num_engines": max(1, gpus - trained) * nodes,
            "trainer.policy.megatron_config.lora_config.merge_lora": False,
            "trainer.policy.model.lora.max_loras": loras,
        }
    return settings
