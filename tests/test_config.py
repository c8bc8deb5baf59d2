"""Recipes: what they may say, what is refused and how, and that a config written down is the same config."""

import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from metaagentx.config import (
    Config,
    CreditConfig,
    EvaluationConfig,
    LossConfig,
    ModelConfig,
    OptimizerConfig,
    RewardConfig,
    RolloutConfig,
    RunConfig,
    StageConfig,
    TasksConfig,
    load_config,
    load_recipe,
    reference,
    to_toml,
)
from metaagentx.errors import MetaAgentXError
from metaagentx.policy import LossOptions
from metaagentx.rewards.score import RewardWeights
from metaagentx.tasks.mixture import cycle_counts, parse_mixture

ROOT = Path(__file__).parent.parent
RECIPES = sorted((ROOT / "recipes").glob("*.toml"))
PAPER = ROOT / "recipes" / "paper_8b.toml"
MARKER = "<!-- What follows is written by metaagentx.config.reference(). -->\n"
SMALLEST = """
steps = 10
stages = [{ steps = 5, executor = 1e-4 }, { steps = 5, designer = 1e-4 }]
model.path = "preset:tiny"
tasks.train = "gym:gcd"
"""


def recipe(folder: Path, text: str = SMALLEST) -> Path:
    path = folder / "my.toml"
    path.write_text(text, "utf-8")
    return path


def refusal(path: Path, *overrides: str) -> str:
    with pytest.raises(MetaAgentXError) as caught:
        load_config(path, overrides)
    text = str(caught.value)
    assert len(text.splitlines()) == 1
    return text


def test_what_a_recipe_leaves_out_has_its_default(tmp_path: Path) -> None:
    config = load_config(recipe(tmp_path))
    assert config == Config(
        steps=10,
        stages=[StageConfig(steps=5, executor=1e-4), StageConfig(steps=5, designer=1e-4)],
        model=ModelConfig(path="preset:tiny"),
        tasks=TasksConfig(train="gym:gcd"),
    )
    assert (config.seed, config.rollout.designs, config.model.compiled, config.run.loggers) == (0, 4, "auto", [])


def test_configs_do_not_change(tmp_path: Path) -> None:
    config = load_config(recipe(tmp_path))
    with pytest.raises(ValidationError, match="frozen"):
        config.rollout.designs = 8


def test_the_loss_is_the_policys() -> None:
    assert LossConfig().options() == LossOptions()
    # The temperature is the rollout's.
    assert [*LossConfig.model_fields, "temperature"] == [field.name for field in fields(LossOptions)]
    assert LossConfig().options(0.7) == LossOptions(temperature=0.7)
    assert LossConfig(kl=0.1, dual_clip=None).options() == LossOptions(kl=0.1, dual_clip=None)


def test_the_rewards_weights_are_the_scores() -> None:
    assert RewardWeights(**RewardConfig().model_dump(exclude={"allow_hard_coded", "allow_fed"})) == RewardWeights()


def test_every_key_is_explained() -> None:
    config = load_config(PAPER)
    sections = [value for _, value in config if isinstance(value, BaseModel)]
    for section in (*sections, *config.stages):
        for name, field in type(section).model_fields.items():
            assert field.description, f"{type(section).__name__}.{name}"
            assert f"| `{name}` |" in reference()


# Overrides


@pytest.mark.parametrize(
    ("override", "section", "key", "value"),
    [
        ("rollout.designs=8", "rollout", "designs", 8),
        (" rollout.designs = 8 ", "rollout", "designs", 8),
        ("rollout.temperature=1", "rollout", "temperature", 1.0),
        ("model.path=models/Qwen3-8B", "model", "path", "models/Qwen3-8B"),
        ('model.path="12"', "model", "path", "12"),
        ("model.path=a=b", "model", "path", "a=b"),
        ("model.path=1\nseed = 2", "model", "path", "1\nseed = 2"),
        ("model.compiled=false", "model", "compiled", False),
        ("model.compiled=auto", "model", "compiled", "auto"),
        ("model.device=cuda:0", "model", "device", "cuda:0"),
        ("tasks.train=0.5*gsm8k + 0.5*apps", "tasks", "train", "0.5*gsm8k + 0.5*apps"),
        ("tasks.data_dir=/data", "tasks", "data_dir", Path("/data")),
        ("loss.dual_clip=false", "loss", "dual_clip", None),
        ("loss.dual_clip=4", "loss", "dual_clip", 4.0),
        ('run.loggers=["wandb", "mlflow"]', "run", "loggers", ["wandb", "mlflow"]),
    ],
)
def test_overrides(tmp_path: Path, override: str, section: str, key: str, value: object) -> None:
    config = load_recipe(recipe(tmp_path), [override]).written
    assert config.model_dump()[section][key] == value


def test_overrides_of_the_whole_run(tmp_path: Path) -> None:
    config = load_config(recipe(tmp_path), ["seed=7", "steps=1_000", "steps=20"])
    assert (config.seed, config.steps) == (7, 20)


def test_overrides_of_stages(tmp_path: Path) -> None:
    path = recipe(tmp_path)
    config = load_config(path, ["stages.0.executor=2e-4", "stages.1.executor=3e-4"])
    assert config.stages == [
        StageConfig(steps=5, executor=2e-4),
        StageConfig(steps=5, executor=3e-4, designer=1e-4),
    ]
    assert load_config(path, ["stages=[{steps=1, designer=1}]"]).stages == [StageConfig(steps=1, designer=1.0)]


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("rollout.designs", ["rollout.designs", "write key=value"]),
        ("=3", ["write key=value"]),
        ("rollout..designs=3", ["rollout..designs", "write key=value"]),
        ("steps.more=3", ["steps has no keys", "write steps=value"]),
        ("steps.more.still=3", ["steps has no keys", "write steps=value"]),
        ("stages.2.executor=1e-4", ["stages has no entry 2", "from 0 to 1"]),
        ("stages.-1.executor=1e-4", ["stages has no entry -1", "from 0 to 1"]),
        ("stages.²=1e-4", ["stages has no entry ²", "from 0 to 1"]),
        ("stages.first=1e-4", ["stages has no entry first", "from 0 to 1"]),
        ("rollout.desings=3", ['my.toml with --set "rollout.desings=3"', "rollout.designs?"]),
        ("rollout.designs=0", ['my.toml with --set "rollout.designs=0"', "from 1 to 100_000"]),
        ("rollout.designs=none", ['rollout.designs = "none"', "an integer from 1 to 100_000"]),
        ("model.device=", ['model.device = ""', "a text in quotes"]),
        ("model=3", ["model = 3", "a section"]),
        ("modle.path=x", ["modle is no key", "did you mean model?"]),
        ("stages.0.lr=1e-4", ["stages.0.lr is no key", "a stage has steps, executor, designer"]),
        ("stages=[]", ["stages = []", "at least one stage"]),
        ("tasks.train=1979-05-27", ["tasks.train = 1979-05-27", "a text in quotes"]),
    ],
)
def test_bad_overrides(tmp_path: Path, override: str, parts: list[str]) -> None:
    text = refusal(recipe(tmp_path), override)
    assert text.startswith(f"{tmp_path / 'my.toml'} with --set ")
    assert all(part in text for part in parts), text


def test_only_the_override_at_fault_is_named(tmp_path: Path) -> None:
    text = refusal(recipe(tmp_path), "seed=3", "evaluation.every=5", "tasks.held_out=0", "steps=7")
    assert "evaluation.every=5" in text and "tasks.held_out=0" in text
    assert "seed" not in text and "steps" not in text


# Refusals


@pytest.mark.parametrize(
    ("lines", "parts"),
    [
        # unknown keys, with the nearest right one
        ("designs = 4", ["designs is no key", "did you mean rollout.designs?"]),
        ("rollout.desings = 4", ["rollout.desings is no key", "did you mean rollout.designs?"]),
        ("rollout.outcome = 1.0", ["rollout.outcome is no key", "did you mean reward.outcome?"]),
        ("learning_rate = 1e-4", ["learning_rate is no key", "a recipe has seed, steps, stages, model"]),
        ("credit.lambda = 1", ["credit.lambda is no key", "has executor_peers, baseline, divide_by_std"]),
        ("step = 4", ["step is no key", "did you mean steps?"]),
        ("dual_clip = 2.0", ["did you mean loss.dual_clip?"]),
        ("loss.entropy = 0.1", ["loss.entropy is no key", "take it out"]),
        ("[rolout]\ndesigns = 4", ["rolout is no key", "did you mean rollout?"]),
        ('"a\\nb" = 4', ['"a\\nb" is no key']),
        # wrong types
        ('seed = "one"', ['seed = "one"', "an integer from 0 to"]),
        ("rollout.designs = 4.0", ["rollout.designs = 4.0", "an integer"]),
        ("rollout.designs = true", ["rollout.designs = true", "an integer"]),
        ('rollout.temperature = "hot"', ['rollout.temperature = "hot"', "a number above 0"]),
        ("model.gguf_file = 3", ["model.gguf_file = 3", "a text in quotes"]),
        ("model.deterministic = 1", ["model.deterministic = 1", "true or false"]),
        ("model.compiled = 1", ["model.compiled = 1", 'true or false or "auto"']),
        ('model.compiled = "never"', ['model.compiled = "never"', 'true or false or "auto"']),
        ('model.sharing = "both"', ['model.sharing = "both"', '"shared", "lora" or "separate"']),
        ('loss.dual_clip = "none"', ['loss.dual_clip = "none"', "a number above 1, or false"]),
        ("loss.dual_clip = true", ["loss.dual_clip = true", "a number above 1, or false"]),
        ("tasks.data_dir = 3", ["tasks.data_dir = 3", "a path in quotes"]),
        ('run.loggers = "wandb"', ['run.loggers = "wandb"', "a list of"]),
        ('run.loggers = ["wand"]', ['run.loggers.0 = "wand"', '"wandb"']),
        ("rollout = 3", ["rollout = 3", "a section"]),
        ("seed = { a = 1979-05-27, b = [] }", ["seed = { a = 1979-05-27, b = [] }", "an integer"]),
        # out of range
        ("seed = -1", ["seed = -1", "from 0 to 9_223_372_036_854_775_807"]),
        (f"seed = {2**63}", [f"seed = {2**63}", "from 0 to 9_223_372_036_854_775_807"]),
        (f"tasks.held_out = {10**10}", ["tasks.held_out = 1", "from 0 to 1_000_000_000"]),
        ("rollout.executions = 0", ["rollout.executions = 0", "from 1 to 100_000"]),
        (f"rollout.designs = {10**9}", [f"rollout.designs = {10**9}", "from 1 to 100_000"]),
        ("rollout.retries = 101", ["rollout.retries = 101", "from 0 to 100"]),
        ("model.threads = 2000", ["model.threads = 2000", "from 0 to 1024"]),
        ("rollout.temperature = 0.0", ["rollout.temperature = 0.0", "above 0"]),
        ("rollout.temperature = nan", ["rollout.temperature = nan", "above 0"]),
        ("rollout.cpu_seconds = inf", ["rollout.cpu_seconds = inf", "above 0"]),
        ("reward.cost_per_call = -0.1", ["reward.cost_per_call = -0.1", "at least 0"]),
        ("loss.clip_low = 1.5", ["loss.clip_low = 1.5", "at most 1"]),
        ("loss.dual_clip = 1.0", ["loss.dual_clip = 1.0", "above 1"]),
        ("loss.kl = -1", ["loss.kl = -1", "at least 0"]),
        ("optimizer.beta1 = 1.0", ["optimizer.beta1 = 1.0", "from 0 to below 1"]),
        ("model.kv_budget_tokens = 0", ["model.kv_budget_tokens = 0", "from 1 to"]),
        ("run.keep_checkpoints = 0", ["run.keep_checkpoints = 0", "from 1 to"]),
        ('model.device = ""', ['model.device = ""', "a text in quotes"]),
        # contradictions
        ('model.sharing = "lora"', ['model.sharing = "lora"', "write model.lora_rank = 16"]),
        (
            "model.deterministic = true\nmodel.compiled = true",
            ["model.compiled = true", "model.deterministic = false"],
        ),
        ("evaluation.every = 5\ntasks.held_out = 0", ["evaluation.every", "write tasks.held_out = 64"]),
        (
            "evaluation.every = 5\ntasks.held_out = 32",
            ["evaluation.tasks = 64", "write evaluation.tasks = 32, or tasks.held_out = 64"],
        ),
        (
            'credit.baseline = "leave_one_out"\nrollout.designs = 1\nrollout.executions = 1',
            ["rollout.designs = 1 and rollout.executions = 1", "write 2 or more"],
        ),
        (
            'credit.executor_peers = "design"\nrollout.executions = 1',
            ['credit.executor_peers = "design"', "write rollout.executions = 2 or more"],
        ),
        ("rollout.designs = 1", ["rollout.designs = 1", "write 2 or more"]),
        (
            "rollout.sample_seconds = 600.0",
            ["2 retries does not fit", "write rollout.sample_seconds = 150, or rollout.execution_seconds = 2400"],
        ),
        (
            "rollout.cpu_seconds = 200.0",
            ["more than a quarter", "write rollout.cpu_seconds = 150, or rollout.execution_seconds = 800"],
        ),
    ],
)
def test_refused_in_one_line_with_key_and_fix(tmp_path: Path, lines: str, parts: list[str]) -> None:
    text = refusal(recipe(tmp_path, SMALLEST + lines))
    assert text.startswith(f"{tmp_path / 'my.toml'}: ")
    assert all(part in text for part in parts), text


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        ("steps = 10", "steps = 0", ["steps = 0", "from 1 to 1_000_000_000"]),
        ("steps = 10", f"steps = {10**26}", [f"steps = {10**26}", "from 1 to 1_000_000_000"]),
        ("steps = 10", "", ["steps is missing", "give it an integer from 1 to 1_000_000_000"]),
        ('model.path = "preset:tiny"', "", ["model is missing", "give it a section"]),
        ('model.path = "preset:tiny"', "model.device = 'cpu'", ["model.path is missing", "give it a text in quotes"]),
        ('model.path = "preset:tiny"', 'model.paht = "x"', ["model.paht is no key", "did you mean model.path?"]),
        ('"preset:tiny"', "'" + "x" * 200 + "'\nmodel.device = []", ["model.device = []", "a text"]),
        ('"preset:tiny"', "[" + "1," * 200 + "]", ["model.path = [1, 1", "... is refused"]),
        ('"gym:gcd"', '""', ['tasks.train = ""', "a text in quotes"]),
        ("{ steps = 5, executor = 1e-4 }", "{ steps = 5 }", ["stages.0 names no role", "executor or designer"]),
        ("{ steps = 5, designer = 1e-4 }", "{ steps = 5 }", ["stages.1 names no role", "executor or designer"]),
        ("{ steps = 5, executor = 1e-4 }", "{ steps = 0, executor = 1e-4 }", ["stages.0.steps = 0", "from 1 to"]),
        ("executor = 1e-4", "executor = 0.0", ["stages.0.executor = 0.0", "a number above 0"]),
        ("designer = 1e-4", "desinger = 1e-4", ["stages.1.desinger is no key", "did you mean stages.1.designer?"]),
        ("{ steps = 5, designer = 1e-4 }", "7", ["stages.1 = 7", "a section"]),
    ],
)
def test_refused_where_a_recipe_must_say_something(tmp_path: Path, old: str, new: str, parts: list[str]) -> None:
    assert old in SMALLEST
    text = refusal(recipe(tmp_path, SMALLEST.replace(old, new)))
    assert text.startswith(f"{tmp_path / 'my.toml'}: ")
    assert all(part in text for part in parts), text


@pytest.mark.parametrize(
    "lines",
    [
        "loss.kl = 0.1",
        "tasks.held_out = 0",
        "evaluation.every = 5\nevaluation.tasks = 32\ntasks.held_out = 32",
        "model.deterministic = true",
        "model.compiled = true",
        'model.sharing = "lora"\nmodel.lora_rank = 8',
        "model.lora_rank = 8",
        "rollout.designs = 8\nrollout.executions = 1",
        'credit.baseline = "leave_one_out"',
    ],
)
def test_allowed(tmp_path: Path, lines: str) -> None:
    load_config(recipe(tmp_path, SMALLEST + lines))


def test_a_role_that_does_not_learn_needs_no_peers(tmp_path: Path) -> None:
    path = recipe(tmp_path)
    load_config(path, ["stages=[{steps=1, executor=1e-4}]", "rollout.designs=1"])
    load_config(path, ["stages=[{steps=1, designer=1e-4}]", "credit.executor_peers=design", "rollout.executions=1"])


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (b"steps = 10\nseed = \xff\n", ["line 2 is not UTF-8", "save the file"]),
        (b"steps = 10\nseed = one\n", ["is not TOML", "line 2", "texts need quotes"]),
        (b"steps = 10\nsteps = 11\n", ["is not TOML", "line 2"]),
        (b'steps = 10\n[model]\npath = "open', ["is not TOML", "line 3"]),
        (b"steps = 10\nstages = [\n", ["is not TOML", "line 2"]),
        (b"seed = " + b"9" * 5000, ["is not TOML"]),
        (b"seed = " + b"[" * 5000, ["is not TOML"]),
        (b"", ["steps is missing"]),
    ],
)
def test_files_that_are_no_recipes(tmp_path: Path, content: bytes, parts: list[str]) -> None:
    path = tmp_path / "my.toml"
    path.write_bytes(content)
    text = refusal(path)
    assert text.startswith(str(path))
    assert all(part in text for part in parts), text


def test_files_that_are_not_there(tmp_path: Path) -> None:
    recipe(tmp_path)
    assert f"did you mean {tmp_path / 'my.toml'}?" in refusal(tmp_path / "mi.toml")
    assert "give the path of a recipe" in refusal(tmp_path / "nowhere" / "other.toml")
    assert "give the path of a recipe" in refusal(tmp_path)


def test_a_byte_order_mark_is_no_fault(tmp_path: Path) -> None:
    path = tmp_path / "my.toml"
    path.write_text(SMALLEST, "utf-8-sig")
    assert load_config(path) == load_config(recipe(tmp_path))


# Writing

TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
COUNT = st.integers(1, 10**9)
NATURAL = st.integers(0, 10**9)
BATCH = st.integers(1, 10**5)
POSITIVE = st.floats(0, exclude_min=True, allow_infinity=False)
NON_NEGATIVE = st.floats(0, allow_infinity=False)
SHARE = st.floats(0, 1, exclude_max=True)


def maybe(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


STAGES = st.lists(
    st.builds(StageConfig, steps=COUNT, executor=POSITIVE, designer=maybe(POSITIVE))
    | st.builds(StageConfig, steps=COUNT, designer=POSITIVE),
    min_size=1,
    max_size=4,
)
MODELS = st.builds(
    ModelConfig,
    path=TEXT,
    gguf_file=maybe(TEXT),
    sharing=st.sampled_from(["shared", "lora", "separate"]),
    lora_rank=st.integers(1, 65536),
    device=maybe(TEXT),
    threads=st.integers(0, 1024),
    max_batch=BATCH,
    kv_budget_tokens=maybe(COUNT),
    deterministic=st.booleans(),
    compiled=st.sampled_from([False, "auto"]),
)
TASKS = st.builds(TasksConfig, train=TEXT, held_out=st.just(10**9), per_step=BATCH, data_dir=maybe(TEXT.map(Path)))
ROLLOUTS = st.builds(
    RolloutConfig,
    designs=st.integers(2, 9),
    executions=st.integers(2, 9),
    temperature=POSITIVE,
    cpu_seconds=st.floats(0, 150, exclude_min=True),
    retries=st.integers(0, 100),
)
LOSSES = st.builds(
    LossConfig,
    clip_high=POSITIVE,
    dual_clip=maybe(st.floats(1, exclude_min=True, allow_infinity=False)),
    normalise=st.sampled_from(["token", "sequence", "constant"]),
    sequence_ratio=st.booleans(),
    kl=NON_NEGATIVE,
    truncate_ratio=maybe(POSITIVE),
)
LOGGERS: st.SearchStrategy[Any] = st.lists(st.sampled_from(["tensorboard", "wandb", "trackio", "mlflow"]))
CONFIGS = st.builds(
    Config,
    seed=st.integers(0, 2**63 - 1),
    steps=COUNT,
    stages=STAGES,
    model=MODELS,
    tasks=TASKS,
    rollout=ROLLOUTS,
    reward=st.builds(RewardConfig, outcome=NON_NEGATIVE, cost_per_call=NON_NEGATIVE, allow_fed=st.booleans()),
    credit=st.builds(CreditConfig, baseline=st.sampled_from(["mean", "leave_one_out"]), divide_by_std=st.booleans()),
    loss=LOSSES,
    optimizer=st.builds(OptimizerConfig, gradient_clip=POSITIVE, beta1=SHARE, updates_per_step=BATCH),
    evaluation=st.builds(EvaluationConfig, every=NATURAL, tasks=COUNT, samples=BATCH),
    run=st.builds(RunConfig, checkpoint_every=COUNT, loggers=LOGGERS),
)


@given(CONFIGS)
def test_a_config_written_down_is_the_same_config(config: Config) -> None:
    assert Config.model_validate(tomllib.loads(to_toml(config))) == config


def test_a_written_recipe_says_everything_that_is_set(tmp_path: Path) -> None:
    config = load_config(recipe(tmp_path), ["loss.dual_clip=false", "tasks.data_dir=my data"])
    text = to_toml(config)
    assert load_config(recipe(tmp_path, text)) == config
    assert to_toml(load_config(recipe(tmp_path, text))) == text
    assert "dual_clip = false\n" in text and f'data_dir = "{Path.cwd()}/my data"\n' in text and "designs = 4\n" in text
    assert "device" not in text and "none" not in text.lower()


# Recipes and documentation


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_recipes_load(path: Path) -> None:
    config = load_config(path)
    assert cycle_counts([weight for _, weight in parse_mixture(config.tasks.train)])
    text = path.read_text("utf-8")
    assert text.startswith("# ") and f"metaagentx train recipes/{path.name}" in text and "# Hardware: " in text


def test_the_papers_setting() -> None:
    config = load_config(PAPER)
    assert config.stages == [StageConfig(steps=30, executor=5e-6), StageConfig(steps=30, designer=5e-6)]
    assert (config.tasks.per_step, config.rollout.designs, config.rollout.executions) == (8, 4, 4)
    assert config.model.sharing == "shared" and config.loss.options() == LossOptions()


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("paper_4b", {"model"}),
        ("coupled", {"stages"}),
        ("one_step", {"stages"}),
        ("executor_only", {"stages"}),
        ("designer_only", {"stages"}),
        ("designs_8x1", {"rollout"}),
        ("separate", {"model"}),
    ],
)
def test_ablations_change_one_thing(name: str, changed: set[str]) -> None:
    paper, other = load_config(PAPER).model_dump(), load_config(PAPER.with_stem(name)).model_dump()
    assert {key for key in paper if paper[key] != other[key]} == changed


def test_the_documentation_lists_all_keys() -> None:
    introduction, marker, rest = (ROOT / "docs" / "config.md").read_text("utf-8").partition(MARKER)
    assert introduction and marker
    assert rest == "\n" + reference(), "put metaagentx.config.reference() behind the marker in docs/config.md"
