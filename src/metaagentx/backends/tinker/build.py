"""Build the policies of both roles on a server: one LoRA for both, or one for each."""

import json
import logging
from dataclasses import dataclass
from pathlib import Path

from ...errors import MetaAgentXError
from ...options import ModelConfig, OptimizerConfig
from ...types import Role
from ..chat import ChatTokenizer
from .lora import Reduction, ServerLora, Shape
from .policy import TinkerPolicy
from .server import Server

_log = logging.getLogger(__name__)
RECORD = "server.json"
"""The file of a run with the adapters that it holds on a server."""


@dataclass(frozen=True, slots=True)
class TinkerPolicies:
    """The policies that are trained, those that a KL term is measured against, and the server that has them."""

    policies: dict[Role, TinkerPolicy]
    references: dict[Role, TinkerPolicy] | None
    server: Server


async def connect_policies(
    options: ModelConfig,
    directory: Path,
    seed: int,
    optimizer: OptimizerConfig | None = None,
    *,
    with_reference: bool = False,
) -> TinkerPolicies:
    """Create the LoRAs of a run on the server. The run's directory gets a record of them.

    `with_reference`: one more, which is never trained and so equals the model itself, for a KL term.
    """
    server = Server(options, directory / RECORD)
    tokenizer, shape = _load_tokenizer(options), _read_shape(Path(options.path))
    await server.connect()
    try:
        name = await server.model_name(options.base_model or options.path)

        async def new_lora(number: int) -> ServerLora:
            client = await server.new_lora(name, options.lora_rank, seed + number)
            return ServerLora(server, client, tokenizer, shape, options.micro_batch)

        first = await new_lora(0)
        loras = {Role.DESIGNER: first, Role.EXECUTOR: first if options.sharing == "shared" else await new_lora(1)}
        reference = TinkerPolicy(await new_lora(2), "reference", name) if with_reference else None
        reduction = await first.probe_reduction()
    except BaseException:
        await server.close()
        raise
    for lora in loras.values():
        lora.reduction = reduction
    if reduction is Reduction.MEAN and optimizer is not None:
        _log.warning("%s does not clip gradients: optimizer.gradient_clip is ignored", server)
    policies = {role: TinkerPolicy(lora, role, name, optimizer) for role, lora in loras.items()}
    return TinkerPolicies(policies, dict.fromkeys(Role, reference) if reference else None, server)


def _load_tokenizer(options: ModelConfig) -> ChatTokenizer:
    from transformers import AutoTokenizer, GenerationConfig

    try:
        tokenizer = AutoTokenizer.from_pretrained(options.path)
    except Exception as error:  # the tokenizers library raises nothing more specific
        reason = " ".join(str(error).split())[:300]
        raise MetaAgentXError(f"the tokenizer of {options.path} does not load ({reason})") from error
    try:
        ends = GenerationConfig.from_pretrained(options.path).eos_token_id
    except OSError:
        ends = None
    end_tokens = [ends] if isinstance(ends, int) else ends or []
    return ChatTokenizer(tokenizer, end_tokens, options.path, options.chat_template)


def _read_shape(path: Path) -> Shape:
    try:
        config = json.loads((path / "config.json").read_text())
        return Shape(int(config["max_position_embeddings"]), int(config["vocab_size"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise MetaAgentXError(
            f"{path / 'config.json'} does not say how long the context and how large the vocabulary is ({error!r}): "
            "copy it from where the model comes from"
        ) from error
