"""The recipe sections that backends take, and what every section of a recipe is built from.

A section of a recipe is the options object of the part that it configures: each option has one definition, one default
and one range. `Config` in `metaagentx.config` puts the sections together. The sections here are defined below `policy`
and `backends`, which may not import `config`.
"""

import re
from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator

PRESET = "preset:"

# Upper bounds are far above any use: a typing error must not end in a crash or in a run without an end.
Count = Annotated[int, Field(ge=1, le=10**9)]
Natural = Annotated[int, Field(ge=0, le=10**9)]
Batch = Annotated[int, Field(ge=1, le=10**5)]
Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Decay = Annotated[float, Field(ge=0, lt=1)]
Text = Annotated[str, Field(min_length=1)]
TemplateArguments: TypeAlias = dict[str, bool | int | float | str]
"""Arguments of a chat template, by name."""
RESERVED_ARGUMENTS = frozenset(
    """self conversation conversations messages tools documents chat_template add_generation_prompt
    continue_final_message tokenize sanitize_control_tokens padding truncation max_length return_tensors return_dict
    return_assistant_tokens_mask tokenizer_kwargs""".split()  # noqa: SIM905
)
"""Arguments of transformers' `apply_chat_template` itself: the backend sets them."""
# Without the validator, pydantic takes 0 for false.
Off = Annotated[Literal[False], BeforeValidator(lambda value: value if isinstance(value, bool) else None)]


def is_hub_name(path: str) -> bool:
    """Return whether a path may be the name of a model on the Hugging Face hub: ORGANIZATION/NAME."""
    return re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*", path) is not None


class Section(BaseModel):
    """Base of all sections: immutable, with no other keys, and without conversions between types."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, strict=True, allow_inf_nan=False
    )


class ModelConfig(Section):
    """The language model, and how the two roles share it."""

    backend: Literal["local", "tinker"] = "local"
    """`local`: this machine samples and trains. `tinker`: a server of the Tinker API does, see docs/cluster.md."""
    path: Text
    """Directory of a model in Hugging Face format, relative to the recipe; or a name on the Hugging Face hub such as
    `Qwen/Qwen3-0.6B`, if there is no such directory; or `preset:tiny` for a new small model."""
    gguf_file: Text | None = None
    """Name of the file in that directory, if the weights are in GGUF format. A run converts it once, to its own
    directory `model`."""
    chat_template: TemplateArguments = {}
    """Arguments of the model's chat template, such as `{ enable_thinking = false }` for Qwen3. They hold for training
    and evaluation. A template ignores arguments that it does not use."""
    sharing: Literal["shared", "lora", "separate"] = "shared"
    """`shared`: both roles use one set of weights. `lora`: one base with a LoRA for each role. `separate`: a model
    for each role."""
    lora_rank: Annotated[int, Field(ge=0, le=65536)] = 0
    """Rank of the LoRA; 0 trains the full weights."""
    device: Text | None = None
    """Torch device, such as `cuda:0`. Not set: the GPU if there is one, else the CPU."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Type of the weights. `auto`: bfloat16 on a GPU, float32 on a CPU. Training keeps float32 weights beside bfloat16
    ones."""
    sampling_dtype: Literal["auto", "bfloat16"] = "auto"
    """Type of the copies of the weights that a CPU samples from, and of the KV cache; `auto`: that of the weights.
    `bfloat16` is faster and samples from a slightly different distribution, whose log-probabilities are recorded
    (docs/models.md). It is ignored, and a line says so, where there are no such copies, as on a GPU, and on a processor
    without bf16 products."""
    threads: Annotated[int, Field(ge=0, le=1024)] = 0
    """CPU threads of the model; 0 uses all cores."""
    max_batch: Batch = 128
    """Maximum number of replies decoded at once."""
    kv_budget_tokens: Count | None = None
    """Maximum number of positions in the KV cache. Not set: as many as fit in half of the memory that is free once the
    weights are loaded, or one full context if that is more and fits."""
    deterministic: bool = False
    """Make runs with the same seed equal bit for bit."""
    compiled: bool | Literal["auto"] = "auto"
    """Compile the decoding step (Qwen3 and Llama, with or without LoRA). `auto`: as soon as it pays; true: at once,
    and fail if that is impossible."""
    base_url: Text | None = None
    """`tinker`: URL of the server, such as `http://localhost:8000`."""
    base_model: Text | None = None
    """`tinker`: the model's name on the server. Not set: `path`. The directory at `path` then needs no weights, only
    the tokenizer's files and config.json."""
    api_key_env: Text = "TINKER_API_KEY"
    """`tinker`: environment variable with the key of the server; a server of your own needs none."""
    micro_batch: Batch = 32
    """`tinker`: the number of sequences in an update is filled up to a multiple of this; the server's own micro-batch
    is best, because engines compile every other number anew."""
    server_seconds: Positive = 600.0
    """`tinker`: maximum duration of one request to the server."""

    @field_validator("chat_template")
    @classmethod
    def _check_chat_template(cls, arguments: TemplateArguments) -> TemplateArguments:
        for name in sorted(RESERVED_ARGUMENTS.intersection(arguments)):
            raise ValueError(f"model.chat_template.{name}: the backend sets this argument: remove it")
        for name, value in arguments.items():
            if isinstance(value, str) and value.lower() in ("true", "false"):  # to a template, both texts are true
                raise ValueError(f'model.chat_template.{name}: "{value}" is a text: write {value.lower()}')
        return arguments

    @property
    def lora_alpha(self) -> int:
        """The scale of the LoRA, before it is divided by the rank. Servers of the Tinker API have a fixed one."""
        return 32 if self.backend == "tinker" else 2 * self.lora_rank

    @property
    def preset(self) -> str | None:
        """The preset that `path` names, or None for a directory."""
        return self.path.removeprefix(PRESET) if self.path.startswith(PRESET) else None

    @property
    def made_by_run(self) -> bool:
        """Whether a run creates or converts the model and keeps it in its directory `model`."""
        return self.preset is not None or self.gguf_file is not None


class LossConfig(Section):
    """The policy loss. The defaults are the paper's: clipped ratio, token mean, no KL term."""

    clip_low: Annotated[float, Field(gt=0, le=1)] = 0.2
    """How far the ratio may fall below 1."""
    clip_high: Positive = 0.2
    """How far the ratio may rise above 1. Larger than `clip_low`: clip-higher, as in DAPO."""
    dual_clip: Annotated[float, Field(gt=1)] | Off = 3.0
    """Upper bound on the ratio of a token with a negative advantage; false disables it."""
    normalize: Literal["token", "sequence", "constant"] = "token"
    """Mean over all tokens, mean of sequence means, or a sum divided by `constant` (Dr.GRPO)."""
    constant: Positive = 1.0
    """Divisor of the sum with `normalize = "constant"`."""
    sequence_ratio: bool = False
    """Use one ratio for a whole sequence, the geometric mean of its tokens' ratios (GSPO)."""
    kl: NonNegative = 0.0
    """Weight of the KL divergence from the model at `model.path`. Above 0 that model is kept in memory as well."""
    truncate_ratio: Positive | None = None
    """Truncated importance sampling: if another engine sampled, weight tokens by min(ratio to that engine, this)."""


class OptimizerConfig(Section):
    """The optimizer, and how the data of a step reach it. Learning rates are set in the stages."""

    method: Literal["adamw", "muon"] = "adamw"
    """`adamw`, or `muon`: Muon for the matrices within the layers, at three times the learning rate, and AdamW for all
    other weights."""
    gradient_clip: Positive = 1.0
    """Maximum norm of a step's gradient."""
    weight_decay: NonNegative = 0.0
    """Decoupled weight decay."""
    beta1: Decay = 0.9
    """Decay of the first moment."""
    beta2: Decay = 0.999
    """Decay of the second moment."""
    token_budget: Count = 8192
    """Maximum number of tokens in a micro-batch. Halved for the rest of the run when memory runs out."""
    activation_checkpointing: bool | Literal["auto"] = "auto"
    """Compute the layers again in the backward pass instead of keeping their activations: less memory, a third more
    time. `auto`: from the first sequence that does not fit into memory by itself."""
    updates_per_step: Batch = 1
    """Number of optimizer steps that the tasks of a training step are split into."""
    minibatch: Batch | None = None
    """Maximum number of samples per optimizer step; a sample is one model call. Not set: `updates_per_step` decides."""
