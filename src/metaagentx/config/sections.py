"""The recipe: one model for each section, and `Config`, which puts them together and finds contradictions.

The sections of the model, the loss and the optimizer are in `metaagentx.options`, where backends can import them.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from ..options import (
    Batch,
    Count,
    LossConfig,
    ModelConfig,
    Natural,
    NonNegative,
    OptimizerConfig,
    Positive,
    Section,
    Text,
)
from ..tasks import Mixture
from ..types import Role
from ..workflow.protocol import INSTRUCTION
from ..workflow.reply import DESIGN_REQUEST, DESIGNER_LINE
from ..workflow.structure import MAX_CALLS

Retries = Annotated[int, Field(ge=0, le=100)]
QUESTION = "{question}"
"""The placeholder of the question in `prompts.designer_request`."""


class TasksConfig(Section):
    """The training tasks."""

    train: Text
    """A mixture of sources, such as `0.5*gsm8k + 0.5*codecontests`."""
    held_out: Natural = 64
    """Number of tasks held out for evaluation and for choosing the best checkpoint."""
    per_step: Batch = 8
    """Tasks per training step."""
    data_dir: Annotated[Path, Field(strict=False)] | None = None
    """Directory with the files of published data sets, relative to the recipe. Not set: `data` in the working
    directory."""


class RolloutConfig(Section):
    """How the tree of a task is sampled, and the limits of each execution."""

    designs: Batch = 4
    """Designs per task."""
    executions: Batch = 4
    """Executions per design."""
    temperature: Positive = 1.0
    """Sampling temperature of both roles, in training and evaluation. The loss compares probabilities at the
    temperature at which a role was sampled."""
    designer_temperature: Positive | None = None
    """Sampling temperature of the Designer. Not set: `temperature`."""
    executor_temperature: Positive | None = None
    """Sampling temperature of the Executor. Not set: `temperature`."""
    designer_tokens: Count = 2048
    """Maximum length of a Designer reply."""
    executor_tokens: Count = 2048
    """Maximum length of an Executor reply."""
    dialect: Literal["strict", "lenient"] = "strict"
    """`strict`: a script with unknown keyword arguments, such as `AgentNode(..., model="x")`, is invalid. `lenient`:
    they are ignored, with a note in the log of the execution."""
    calls: Count = MAX_CALLS
    """Maximum number of model calls in an execution. A workflow that can need more is refused before its first call."""
    tokens: Count = 32768
    """Maximum number of tokens that the model writes in an execution, checked after each reply."""
    execution_seconds: Positive = 600.0
    """Wall-clock limit of an execution, including waiting and retries. A script that exceeds it is at fault, unless one
    model call, or waiting for the CPU, took a quarter of it: then it is an infrastructure fault. Calls that a script
    makes at the same time share their time; waiting for tools is the script's own."""
    cpu_seconds: Positive = 10.0
    """CPU time limit of a script. The programs that it runs have the same limit together."""
    in_flight: Batch = 128
    """Maximum number of concurrent executions."""
    redraws: Retries = 0
    """Dynamic sampling: how many times tasks whose groups have no spread are replaced by other tasks."""
    sample_seconds: Positive | None = None
    """Timeout of one attempt of a call; waiting for room in the local backend does not count. Not set:
    `execution_seconds / (retries + 2)`, so that all attempts fit."""
    retries: Retries = 2
    """How many times a call, a sandbox run or a grade is retried after an infrastructure fault."""

    @property
    def temperatures(self) -> dict[Role, float]:
        """The sampling temperature of each role."""
        return {
            Role.DESIGNER: self.designer_temperature or self.temperature,
            Role.EXECUTOR: self.executor_temperature or self.temperature,
        }

    @property
    def lenient(self) -> bool:
        """Whether unknown keyword arguments in a script are ignored."""
        return self.dialect == "lenient"

    @property
    def attempt_seconds(self) -> float:
        """The timeout of one attempt of a call, whether or not the recipe sets it."""
        return self.sample_seconds or self.execution_seconds / (self.retries + 2)

    @property
    def evidence_seconds(self) -> float:
        """How long one call, or waiting for the CPU, must take to make a late execution an infrastructure fault.

        A script may not sleep or compute for longer, so that it cannot cause this evidence itself.
        """
        return self.execution_seconds / 4


class ToolsConfig(Section):
    """Tools of your own that scripts may give to their agents. They run on the host, outside the sandbox."""

    functions: list[Text] = []  # noqa: RUF012 - pydantic copies it
    """Python functions, each as `module:function`. The module is searched in the working directory first."""
    mcp: list[Text] = []  # noqa: RUF012 - pydantic copies it
    """Commands that start MCP servers, such as `python server.py`, run in the working directory. Needs the extra
    `tools`."""
    seconds: Positive = 30.0
    """Timeout of one call. The agent reads that the tool was not done."""
    calls: Count = 32
    """Maximum number of tool calls in an execution."""
    argument_characters: Count = 20000
    """Maximum length of the arguments of a call, as JSON. The agent reads that longer ones were not run."""
    result_characters: Count = 20000
    """Maximum length of a result. The middle of a longer one is left out."""

    @property
    def offered(self) -> bool:
        """Whether any tool is offered."""
        return bool(self.functions or self.mcp)


class PromptsConfig(Section):
    """What the roles are told besides the question and what a script tells its agents. Use the prompts that a model was
    trained with. The cold start, training and evaluation use the same ones."""

    designer_system: str = DESIGNER_LINE
    """System message of the Designer. Empty: no system message."""
    designer_request: Text = DESIGN_REQUEST + QUESTION
    """The message that asks for a design. `{question}` stands for the question."""
    agent_instruction: str = INSTRUCTION
    """What every agent is told after its own system prompt: how to hand on its result and how to state an answer. An
    agent that repeats it delivers nothing. Answers are still read from `<delivery>`, `\\boxed{}` and `<solution>`."""

    @field_validator("designer_request")
    @classmethod
    def _check_question(cls, request: str) -> str:
        if request.count(QUESTION) != 1:
            raise ValueError(
                f"prompts.designer_request: expected the placeholder {QUESTION} once, found it "
                f"{request.count(QUESTION)} times: write {QUESTION} where the question belongs"
            )
        return request

    @field_validator("designer_system", "agent_instruction")
    @classmethod
    def _check_no_question(cls, text: str, info: ValidationInfo) -> str:
        if QUESTION in text:
            raise ValueError(
                f"prompts.{info.field_name}: {QUESTION} stands for the question in prompts.designer_request only: "
                "remove it"
            )
        return text

    def request(self, question: str) -> str:
        """Return the message that asks for a design for a question."""
        return self.designer_request.replace(QUESTION, question)


class RewardConfig(Section):
    """Weights of the reward terms, and which answers are accepted."""

    outcome: NonNegative = 1.0
    """Weight of the grader's score."""
    solution: NonNegative = 0.4
    """Weight of a final answer that can be parsed."""
    delivery: NonNegative = 0.4
    """Weight of the share of messages between agents that carry exactly one well-formed delivery."""
    cost_per_call: NonNegative = 0.0
    """Subtracted for each call of an execution."""
    cost_per_1000_tokens: NonNegative = 0.0
    """Subtracted for each 1000 tokens that the model writes in an execution."""
    allow_hard_coded: bool = False
    """Accept an answer that no call of the Executor produced."""
    allow_fed: bool = False
    """Accept an answer that the script wrote into a prompt before any agent had said it."""


class CreditConfig(Section):
    """How rewards become advantages. The defaults are the paper's."""

    executor_peers: Literal["task", "design"] = "task"
    """Group of an execution: all executions of its task, or those of its design."""
    baseline: Literal["mean", "leave_one_out"] = "mean"
    """Mean of the group, or mean of the others in the group (RLOO)."""
    divide_by_std: bool = True
    """Divide advantages by the standard deviation of the group; false as in Dr.GRPO."""


class StageConfig(Section):
    """A number of steps in which the same roles are trained. A role without a learning rate is not trained at all."""

    steps: Count
    """Length of the stage."""
    executor: Positive | None = None
    """Learning rate of the Executor."""
    designer: Positive | None = None
    """Learning rate of the Designer."""
    epochs: Batch = 1
    """Passes over the data of a step; the clipped ratio bounds how far they move the policy."""
    anchor: NonNegative = 0.0
    """With shared weights: weight of a loss term that keeps the sound replies of the role that is not trained likely:
    designs that can run, or calls of executions without a fault."""

    @property
    def learning_rates(self) -> dict[Role, float]:
        """The learning rate of each role that is trained."""
        rates = {Role.EXECUTOR: self.executor, Role.DESIGNER: self.designer}
        return {role: rate for role, rate in rates.items() if rate is not None}


class EvaluationConfig(Section):
    """Evaluation on held-out tasks during training."""

    every: Natural = 0
    """Evaluate every N steps; 0 disables."""
    tasks: Count = 64
    """Number of held-out tasks to evaluate on."""
    samples: Batch = 1
    """Samples per task: each is a new design, executed once."""
    temperature: NonNegative | None = None
    """Sampling temperature of both roles, also of `metaagentx eval`; 0 takes the most likely tokens. Not set: the
    temperatures of training."""
    designer_temperature: NonNegative | None = None
    """Sampling temperature of the Designer. Not set: `temperature`."""
    executor_temperature: NonNegative | None = None
    """Sampling temperature of the Executor. Not set: `temperature`."""

    def temperature_of(self, role: Role, training: float) -> float:
        """Return the sampling temperature of a role, whose temperature in training is given."""
        own = self.designer_temperature if role is Role.DESIGNER else self.executor_temperature
        return next(value for value in (own, self.temperature, training) if value is not None)


class RunConfig(Section):
    """What is written to the run directory, and which loggers get the metrics."""

    checkpoint_every: Count = 10
    """Save a checkpoint every N steps."""
    keep_checkpoints: Count = 2
    """How many of the newest checkpoints to keep."""
    rollouts_every: Count = 1
    """Write the rollouts of every Nth step."""
    stop_after_failed_steps: Natural = 3
    """Stop after N consecutive steps in which no design could run; 0 disables."""
    loggers: list[Literal["tensorboard", "wandb", "trackio", "mlflow"]] = []  # noqa: RUF012 - pydantic copies it
    """Where metrics are logged besides the run directory."""


class Config(Section):
    """The keys before the first section."""

    seed: Annotated[int, Field(ge=0, le=2**63 - 1)] = 0
    """Seed of every random draw."""
    steps: Count
    """Number of training steps."""
    stages: Annotated[list[StageConfig], Field(min_length=1)]
    """Which roles are trained when, such as `[{ steps = 30, executor = 5e-6 }, { steps = 30, designer = 5e-6 }]`. The
    stages repeat until the last step."""
    model: ModelConfig
    tasks: TasksConfig
    prompts: PromptsConfig = PromptsConfig()
    rollout: RolloutConfig = RolloutConfig()
    tools: ToolsConfig = ToolsConfig()
    reward: RewardConfig = RewardConfig()
    credit: CreditConfig = CreditConfig()
    loss: LossConfig = LossConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    run: RunConfig = RunConfig()

    def load_tasks(self) -> Mixture:
        """Load the training tasks and those that are held out."""
        return Mixture(self.tasks.train, self.seed, self.tasks.held_out, data_dir=self.tasks.data_dir)

    @model_validator(mode="after")
    def _check_contradictions(self, info: ValidationInfo) -> Self:
        require_peers = (info.context or {}).get("require_peers", True)
        for contradiction in (*contradictions(self), *(_missing_peers(self) if require_peers else ())):
            raise ValueError(contradiction)
        return self


def contradictions(config: Config) -> Iterator[str]:
    """Yield what settings contradict each other, each with its fix."""
    for index, stage in enumerate(config.stages):
        if not stage.learning_rates:
            yield f"stages.{index} trains no role: give executor or designer a learning rate, such as 5e-6"
    if config.model.backend == "tinker":
        yield from _tinker_contradictions(config)
    if config.model.sharing == "lora" and config.model.lora_rank == 0:
        yield 'model.sharing = "lora" needs a LoRA: set model.lora_rank = 16, or model.sharing = "shared"'
    if config.model.deterministic and config.model.compiled is True:
        yield "model.compiled = true is not deterministic: remove it, or set model.deterministic = false"
    yield from _sampling_contradictions(config.model)
    if config.optimizer.minibatch and config.optimizer.updates_per_step > 1:
        yield (
            f"optimizer.minibatch = {config.optimizer.minibatch} and optimizer.updates_per_step = "
            f"{config.optimizer.updates_per_step} both split the data of a step: remove one of them"
        )
    held_out, evaluation = config.tasks.held_out, config.evaluation
    if evaluation.every and not held_out:
        yield "evaluation.every needs held-out tasks: set tasks.held_out = 64, or evaluation.every = 0"
    elif evaluation.every and evaluation.tasks > held_out:
        yield (
            f"evaluation.tasks = {evaluation.tasks} is more than tasks.held_out = {held_out}: "
            f"set evaluation.tasks = {held_out}, or tasks.held_out = {evaluation.tasks}"
        )
    rollout, limit = config.rollout, config.rollout.execution_seconds
    shares, attempt = rollout.retries + 2, rollout.attempt_seconds
    if (rollout.retries + 1) * attempt > limit:
        yield (
            f"rollout.sample_seconds = {attempt:g} with {rollout.retries} retries does not fit into "
            f"rollout.execution_seconds = {limit:g}: set rollout.sample_seconds = {limit / shares:g}, "
            f"or rollout.execution_seconds = {attempt * shares:g}"
        )
    if rollout.cpu_seconds > rollout.evidence_seconds:
        yield (
            f"rollout.cpu_seconds = {rollout.cpu_seconds:g} is more than a quarter of rollout.execution_seconds = "
            f"{limit:g}, so a script that computes would be late without being at fault: set rollout.cpu_seconds = "
            f"{rollout.evidence_seconds:g}, or rollout.execution_seconds = {4 * rollout.cpu_seconds:g}"
        )
    if config.tools.offered and config.tools.seconds > rollout.evidence_seconds:
        yield (
            f"tools.seconds = {config.tools.seconds:g} is more than a quarter of rollout.execution_seconds = {limit:g}"
            ", so an agent that waits for a tool would be late without being at fault: set tools.seconds = "
            f"{rollout.evidence_seconds:g}, or rollout.execution_seconds = {4 * config.tools.seconds:g}"
        )


def _sampling_contradictions(model: ModelConfig) -> Iterator[str]:
    """Yield what does not go with copies of the weights in another type."""
    if model.sampling_dtype == "auto":
        return
    narrow, other = f'model.sampling_dtype = "{model.sampling_dtype}"', 'or model.sampling_dtype = "auto"'
    if model.compiled is True:
        yield f"{narrow} cannot be compiled: remove model.compiled = true, {other}"
    if model.dtype == "bfloat16":
        yield f'{narrow} is a copy of float32 weights: set model.dtype = "float32", {other}'
    if model.backend == "tinker":
        yield f'{narrow} is for the local backend, and the server samples here: set model.sampling_dtype = "auto"'


def _tinker_contradictions(config: Config) -> Iterator[str]:
    """Yield what a server of the Tinker API cannot do."""
    model, temperatures = config.model, config.rollout.temperatures
    if model.base_url is None:
        yield 'model.backend = "tinker" needs the URL of a server: set model.base_url = "http://localhost:8000"'
    elif not model.base_url.startswith(("http://", "https://")):
        yield f"model.base_url = {model.base_url!r} is not a URL: write it like http://localhost:8000"
    if model.lora_rank == 0:
        yield 'model.backend = "tinker" trains a LoRA, not the full weights: set model.lora_rank = 16'
    if model.sharing == "separate":
        yield (
            'model.sharing = "separate" needs a model for each role, and a server has one: '
            'set model.sharing = "lora", or "shared"'
        )
    if model.preset is not None or model.gguf_file is not None:
        yield 'model.backend = "tinker" needs the directory of a model that the server has: set model.path'
    for role, temperature in temperatures.items():
        if temperature != 1:
            yield (
                f"the {role} is sampled at temperature {temperature:g}, and servers of the Tinker API train at "
                "temperature 1 only: set rollout.temperature = 1.0"
            )


def _missing_peers(config: Config) -> Iterator[str]:
    """Yield what is wrong with roles that are trained in groups of one: their advantage would always be 0."""
    designs, executions = config.rollout.designs, config.rollout.executions
    trained = {role for stage in config.stages for role in stage.learning_rates}
    if designs == executions == 1:
        yield "rollout.designs = 1 and rollout.executions = 1 leave nothing to compare: set one of them to 2 or more"
    if Role.EXECUTOR in trained and config.credit.executor_peers == "design" and executions == 1:
        yield (
            'credit.executor_peers = "design" with rollout.executions = 1 compares each execution with itself: '
            'set rollout.executions = 2 or more, or credit.executor_peers = "task"'
        )
    if Role.DESIGNER in trained and designs == 1:
        yield (
            "rollout.designs = 1 compares each design with itself: "
            "set rollout.designs = 2 or more, or remove designer from the stages"
        )
