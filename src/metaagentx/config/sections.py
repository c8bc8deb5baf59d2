"""One model for each section of a recipe, with every default in this one place, and what contradicts what."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, model_validator

from ..policy import PAPER_LOSS, LossOptions
from ..workflow.validate import MAX_CALLS

# Each kind of value with its range, and the same in words for messages and for the reference.
# Numbers have an upper bound too, far above any use: a typing error shall not end in a crash or in a run without end.
Count = Annotated[int, Field(ge=1, le=10**9), "an integer from 1 to 1_000_000_000"]
Natural = Annotated[int, Field(ge=0, le=10**9), "an integer from 0 to 1_000_000_000"]
Batch = Annotated[int, Field(ge=1, le=10**5), "an integer from 1 to 100_000"]
Seed = Annotated[int, Field(ge=0, le=2**63 - 1), "an integer from 0 to 9_223_372_036_854_775_807"]
Threads = Annotated[int, Field(ge=0, le=1024), "an integer from 0 to 1024"]
Rank = Annotated[int, Field(ge=0, le=65536), "an integer from 0 to 65_536"]
Retries = Annotated[int, Field(ge=0, le=100), "an integer from 0 to 100"]
Positive = Annotated[float, Field(gt=0), "a number above 0"]
NonNegative = Annotated[float, Field(ge=0), "a number of at least 0"]
Share = Annotated[float, Field(ge=0, lt=1), "a number from 0 to below 1"]
Clip = Annotated[float, Field(gt=0, le=1), "a number above 0 and at most 1"]
Text = Annotated[str, Field(min_length=1), "a text in quotes"]
Folder = Annotated[Path, Field(strict=False), "a path in quotes"]
# TOML has no null, and leaving this key out means its default: so false it is.
DualClip = Annotated[
    Annotated[float, Field(gt=1)] | None,
    BeforeValidator(lambda value: None if value is False else value),
    "a number above 1, or false for none",
]


class Section(BaseModel):
    """What all sections have in common: they do not change, and know no other keys."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, strict=True, allow_inf_nan=False
    )


class ModelConfig(Section):
    """The language model, and how the two roles share it."""

    path: Text
    """Directory of a model in Hugging Face format, relative to the recipe, or `preset:tiny` for a new small model."""
    gguf_file: Text | None = None
    """The file in that directory, where the weights are in GGUF format."""
    sharing: Literal["shared", "lora", "separate"] = "shared"
    """Both roles on one set of weights, one LoRA each on one base, or one model each."""
    lora_rank: Rank = 0
    """0: full weights."""
    device: Text | None = None
    """As torch names it, such as `cuda:0`. Not set: the GPU if there is one, else the CPU."""
    threads: Threads = 0
    """CPU threads of the model; 0: as many as there are cores."""
    max_batch: Batch = 128
    """The most replies that are written at once."""
    kv_budget_tokens: Count | None = None
    """The most tokens kept in the KV cache. Not set: by the memory there is."""
    deterministic: bool = False
    """The same seed gives the same bits."""
    compiled: bool | Literal["auto"] = "auto"
    """Compile the decoding step (Qwen3 and Llama, LoRA or not). `auto`: once it pays; true: at once, or be refused."""


class TasksConfig(Section):
    """What is learnt from."""

    train: Text
    """A mixture of sources, such as `0.5*gsm8k + 0.5*codecontests`."""
    held_out: Natural = 64
    """Tasks kept back for evaluation and for choosing the checkpoint."""
    per_step: Batch = 8
    """Tasks in the batch of a step."""
    data_dir: Folder | None = None
    """Where files of published data sets are looked for, relative to the recipe. Not set: `data` in the working
    directory."""


class RolloutConfig(Section):
    """How the tree of a task is grown, and what it may use up."""

    designs: Batch = 4
    """For each task."""
    executions: Batch = 4
    """For each design."""
    temperature: Positive = 1.0
    """Of both roles, in training and evaluation; the loss compares probabilities at this temperature."""
    designer_tokens: Count = 2048
    """The longest reply of the Designer."""
    executor_tokens: Count = 2048
    """The longest reply of the Executor."""
    calls: Count = MAX_CALLS
    """The most calls of an execution. A script that can need more in the worst case is refused before it runs."""
    tokens: Count = 32768
    """The most tokens that the model writes in an execution."""
    execution_seconds: Positive = 600.0
    """Wall-clock time of an execution, waiting and every retry included."""
    cpu_seconds: Positive = 10.0
    """Processor time of a script together with the programs it runs."""
    in_flight: Batch = 128
    """Executions at once."""
    redraws: Retries = 0
    """Dynamic sampling: tasks whose groups have no spread are replaced by others, at most so many times."""
    sample_seconds: Positive | None = None
    """Deadline of one try of a call. Not set: `execution_seconds / (retries + 2)`, so that all tries fit."""
    retries: Retries = 2
    """How often a call, a sandbox or a grade is tried again after an infra fault."""

    @property
    def try_seconds(self) -> float:
        """The deadline of one try of a call, whether it is set or not."""
        return self.sample_seconds or self.execution_seconds / (self.retries + 2)


class RewardConfig(Section):
    """How much each part of the reward counts."""

    outcome: NonNegative = 1.0
    """What the task's own grader says."""
    solution: NonNegative = 0.4
    """The final answer can be read."""
    delivery: NonNegative = 0.4
    """The share of messages between agents that carry one well-formed delivery."""
    cost_per_call: NonNegative = 0.0
    """Taken off for each call of an execution."""
    cost_per_1000_tokens: NonNegative = 0.0
    """Taken off for each 1000 tokens that the model writes in an execution."""
    allow_hard_coded: bool = False
    """Accept an answer that no call of the Executor produced."""
    allow_fed: bool = False
    """Accept an answer that the script wrote into a prompt before any agent had said it."""


class CreditConfig(Section):
    """Who is compared with whom."""

    executor_peers: Literal["task", "design"] = "task"
    """An execution is compared with all of its task, or with those of its design."""
    baseline: Literal["mean", "leave_one_out"] = "mean"
    """The mean of the group, or of the others in it (RLOO)."""
    divide_by_std: bool = True
    """Divide advantages by the spread of the group; false as in Dr.GRPO."""


class LossConfig(Section):
    """The policy loss; the defaults are the paper's."""

    clip_low: Clip = PAPER_LOSS.clip_low
    """How far the ratio may fall below 1."""
    clip_high: Positive = PAPER_LOSS.clip_high
    """How far the ratio may rise above 1. Larger than `clip_low`: clip-higher, as in DAPO."""
    dual_clip: DualClip = PAPER_LOSS.dual_clip
    """The most that a token with a negative advantage may weigh."""
    normalise: Literal["token", "sequence", "constant"] = PAPER_LOSS.normalise
    """Mean over all tokens, mean of sequence means, or a sum over a constant (Dr.GRPO)."""
    constant: Positive = PAPER_LOSS.constant
    """What sums are divided by with `normalise = "constant"`."""
    sequence_ratio: bool = PAPER_LOSS.sequence_ratio
    """One ratio for a whole sequence, the geometric mean of its tokens' (GSPO)."""
    kl: NonNegative = PAPER_LOSS.kl
    """Weight of the KL divergence to the model at `model.path`. Above 0 that model is kept in memory as well."""
    truncate_ratio: Positive | None = PAPER_LOSS.truncate_ratio
    """Truncated importance sampling: when another engine sampled, weigh tokens by min(ratio to it, this)."""

    def options(self, temperature: float = 1.0) -> LossOptions:
        """As a backend takes them, for data sampled at this temperature."""
        return LossOptions(**self.model_dump(), temperature=temperature)


class OptimizerConfig(Section):
    """AdamW, and how the data of a step reach it. Learning rates stand in the stages."""

    gradient_clip: Positive = 1.0
    """The largest norm of a step's gradient."""
    weight_decay: NonNegative = 0.0
    """Decoupled, as AdamW has it."""
    beta1: Share = 0.9
    """Decay of the first moment."""
    beta2: Share = 0.999
    """Decay of the second moment."""
    token_budget: Count = 8192
    """The most tokens in a micro-batch. Halved for the rest of the run where memory runs out."""
    updates_per_step: Batch = 1
    """The data of a step are learnt from in so many optimizer steps."""


class StageConfig(Section):
    """Some steps in which the same roles learn. A role that is not named does not learn at all."""

    steps: Count
    """How long the stage is."""
    executor: Positive | None = None
    """Learning rate of the Executor."""
    designer: Positive | None = None
    """Learning rate of the Designer."""
    epochs: Batch = 1
    """How often the data of a step are learnt from; the clipped ratio bounds how far that goes."""


class EvaluationConfig(Section):
    """Measuring on held-out tasks while training."""

    every: Natural = 0
    """So many steps; 0: never."""
    tasks: Count = 64
    """How many of the held-out ones."""
    samples: Batch = 1
    """Executions of each task."""


class RunConfig(Section):
    """What is written into the run directory, and who else is told."""

    checkpoint_every: Count = 10
    """So many steps."""
    keep_checkpoints: Count = 2
    """The newest so many."""
    rollouts_every: Count = 1
    """The trees of every so many steps are written."""
    stop_after_failed_steps: Natural = 3
    """Stop after so many steps in a row in which no design could run; 0 never stops."""
    loggers: list[Literal["tensorboard", "wandb", "trackio", "mlflow"]] = Field(default_factory=list)
    """Where metrics go besides the run directory."""


class Config(Section):
    """What stands before the first section."""

    seed: Seed = 0
    """Everything that is drawn depends on it."""
    steps: Count
    """Training steps in all."""
    stages: Annotated[
        list[StageConfig], Field(min_length=1), "a list of at least one stage: [{ steps = 30, executor = 5e-6 }]"
    ]
    """Who learns when; after the last one they begin over again."""
    model: ModelConfig
    tasks: TasksConfig
    rollout: RolloutConfig = RolloutConfig()
    reward: RewardConfig = RewardConfig()
    credit: CreditConfig = CreditConfig()
    loss: LossConfig = LossConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    run: RunConfig = RunConfig()

    @model_validator(mode="after")
    def _refuse_contradictions(self, info: ValidationInfo) -> Self:
        trained = (info.context or {}).get("trained", True)
        for contradiction in (*_contradictions(self), *(_lonely(self) if trained else ())):
            raise ValueError(contradiction)
        return self


def _contradictions(config: Config) -> Iterator[str]:
    for number, stage in enumerate(config.stages):
        if stage.executor is None and stage.designer is None:
            yield f"stages.{number} names no role: give executor or designer a learning rate, such as 5e-6"
    if config.model.sharing == "lora" and config.model.lora_rank == 0:
        yield 'model.sharing = "lora" needs a LoRA: write model.lora_rank = 16, or model.sharing = "shared"'
    if config.model.deterministic and config.model.compiled is True:
        yield "model.compiled = true cannot promise the same bits: leave it out, or write model.deterministic = false"
    held_out, evaluation = config.tasks.held_out, config.evaluation
    if evaluation.every and not held_out:
        yield "evaluation.every needs held-out tasks: write tasks.held_out = 64, or evaluation.every = 0"
    elif evaluation.every and evaluation.tasks > held_out:
        yield (
            f"evaluation.tasks = {evaluation.tasks} is more than are held out: "
            f"write evaluation.tasks = {held_out}, or tasks.held_out = {evaluation.tasks}"
        )
    yield from _late(config.rollout)


def _late(rollout: RolloutConfig) -> Iterator[str]:
    """Limits that the deadline of an execution would cut off."""
    shares, whole = rollout.retries + 2, rollout.execution_seconds
    if (rollout.retries + 1) * rollout.try_seconds > whole:
        yield (
            f"rollout.sample_seconds = {rollout.try_seconds:g} with {rollout.retries} retries does not fit into "
            f"rollout.execution_seconds = {whole:g}: write rollout.sample_seconds = {whole / shares:g}, "
            f"or rollout.execution_seconds = {rollout.try_seconds * shares:g}"
        )
    if rollout.cpu_seconds > whole / 4:
        yield (
            f"rollout.cpu_seconds = {rollout.cpu_seconds:g} is more than a quarter of rollout.execution_seconds = "
            f"{whole:g}, so scripts that compute would be late and not at fault: write rollout.cpu_seconds = "
            f"{whole / 4:g}, or rollout.execution_seconds = {4 * rollout.cpu_seconds:g}"
        )


def _lonely(config: Config) -> Iterator[str]:
    """Roles that are trained but have nobody to be compared with: their advantage would always be 0."""
    designs, executions = config.rollout.designs, config.rollout.executions
    if designs == executions == 1:
        yield "rollout.designs = 1 and rollout.executions = 1 leave nothing to compare: write 2 or more for one of them"
    trains_executor = any(stage.executor is not None for stage in config.stages)
    trains_designer = any(stage.designer is not None for stage in config.stages)
    if trains_executor and config.credit.executor_peers == "design" and executions == 1:
        yield (
            'credit.executor_peers = "design" with rollout.executions = 1 compares an execution with itself alone: '
            'write rollout.executions = 2 or more, or credit.executor_peers = "task"'
        )
    if trains_designer and designs == 1:
        yield (
            "rollout.designs = 1 compares a design with itself alone: "
            "write 2 or more, or take designer out of the stages"
        )
