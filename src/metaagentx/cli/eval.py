"""`metaagentx eval`: compare a run, or any model, with fixed designs and single agents on the same tasks."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import MetaAgentXError
from . import interrupts

if TYPE_CHECKING:
    from .evaluation_request import EvalResult

RunDirectory = Annotated[Path | None, typer.Argument(help="The run directory, such as runs/tiny. Or give --model.")]
InitialModel = Annotated[
    Path | None, typer.Option(help="The model before RL. Default: the model that the run started from.")
]
Against = Annotated[Path | None, typer.Option(hidden=True, help="Earlier name of --initial-model.")]
Tasks = Annotated[
    list[str] | None,
    typer.Option(
        help="A source such as aime24, or `paper` for its six benchmarks. May be repeated. Default: the run's "
        "held-out tasks; with --split, its training sources. Required with --model."
    ),
]
PublicTests = Annotated[bool, typer.Option("--public-tests", help="Of `paper`: public tests only.")]
Split = Annotated[str, typer.Option(help="Split of the sources. Default: test if --tasks is given.")]
Limit = Annotated[int, typer.Option(help="The most tasks of each source; 0: all.", min=0)]
Samples = Annotated[int, typer.Option(help="Samples of each task, by each method.", min=1)]
Methods = Annotated[str, typer.Option(help="metaagentx,cold-start,self-consistency,... Default: all.")]
Scripts = Annotated[
    list[Path] | None, typer.Option(help="A file with another fixed design, measured in addition to --methods.")
]
Out = Annotated[
    Path | None,
    typer.Option(
        help="The directory for results. Default: RUN/evaluation/<step>, or runs/eval/<model>. `report` shows all of "
        "RUN/evaluation."
    ),
]
Checkpoint = Annotated[str | None, typer.Option(help="best, last, or a step. Default: best.")]
Temperature = Annotated[
    float | None,
    typer.Option(help="Sampling temperature of both roles, 0 for greedy decoding. Default: the recipe's.", min=0),
]
Model = Annotated[
    str | None,
    typer.Option(help="A model to evaluate without a run: a directory, a hub name, or a name on the server."),
]
BaseURL = Annotated[str | None, typer.Option(help="URL of an OpenAI-compatible server that has --model.")]
KeyVariable = Annotated[str | None, typer.Option(help="Variable with the server's API key. Default: OPENAI_API_KEY.")]
ExtraBody = Annotated[str | None, typer.Option(help="JSON object to add to each request to the server.")]
Concurrency = Annotated[
    int | None, typer.Option(help="The most requests to the server at once. Default: 32.", min=1, max=10**5)
]
RecipeName = Annotated[
    str | None, typer.Option(help="Recipe file or name with the settings for --model. Default: the defaults.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", help="key=value of a recipe, such as rollout.executor_tokens=8192, with --model."),
]


def evaluate_command(  # noqa: PLR0913, PLR0917  the options of a command are its parameters
    run: RunDirectory = None,
    initial_model: InitialModel = None,
    against: Against = None,
    tasks: Tasks = None,
    public_tests: PublicTests = False,
    split: Split = "",
    limit: Limit = 0,
    samples: Samples = 1,
    methods: Methods = "",
    script: Scripts = None,
    out: Out = None,
    checkpoint: Checkpoint = None,
    temperature: Temperature = None,
    model: Model = None,
    base_url: BaseURL = None,
    api_key_env: KeyVariable = None,
    extra_body: ExtraBody = None,
    concurrency: Concurrency = None,
    recipe: RecipeName = None,
    overrides: Overrides = None,
) -> None:
    """Measure a run or a model against other methods: same tasks, seeds, budgets. The same command resumes."""
    from ..config.bundled import find_recipe
    from .evaluation_request import ModelRequest, RunRequest, Server, evaluate_model, evaluate_run

    of_run = {"initial-model": initial_model or against, "checkpoint": checkpoint}
    of_server = {"api-key-env": api_key_env, "extra-body": extra_body, "concurrency": concurrency}
    of_model = {"base-url": base_url, **of_server, "recipe": recipe, "set": overrides}
    common: dict[str, Any] = {
        "tasks": tuple(tasks or ()),
        "public_tests": public_tests,
        "split": split,
        "limit": limit,
        "samples": samples,
        "methods": tuple(name for name in methods.split(",") if name.strip()),
        "scripts": tuple(script or ()),
        "out": out,
        "temperature": temperature,
    }
    if run is not None and model is not None:
        raise MetaAgentXError(f"a run ({run}) and --model {model} are two evaluations: give one of them")
    if run is not None:
        _refuse(of_model, "is for a model without a run: give --model instead of a run directory")
        work = evaluate_run(RunRequest(run, initial_model or against, checkpoint or "best", **common))
    elif model is not None:
        _refuse(of_run, "is for a run: give its directory instead of --model")
        if base_url is None:
            _refuse(of_server, "is for a model on a server: give its URL with --base-url")
        limits = {} if concurrency is None else {"concurrency": concurrency}
        server = None if base_url is None else Server(base_url, api_key_env, extra_body, **limits)
        path = None if recipe is None else find_recipe(recipe)
        work = evaluate_model(ModelRequest(model, server, path, tuple(overrides or ()), **common))
    else:
        raise MetaAgentXError("nothing to evaluate: give a run directory, such as runs/tiny, or a model with --model")
    _print(interrupts.run(work))


def _print(result: "EvalResult") -> None:
    typer.echo(result.evaluation.to_markdown())
    if result.missing is not None:
        typer.echo(f"Left out: methods with the initial model, because no model at {result.missing}.")
        typer.echo("Name its directory with --initial-model.")
    if result.usage is not None:
        counts = (f"{result.usage[name]} {name.replace('_', ' ')}" for name in sorted(result.usage, reverse=True))
        typer.echo(", ".join(counts))
    typer.echo(f"{result.directory / 'evaluation.json'}, {result.directory / 'evaluation.md'}")


def _refuse(options: Mapping[str, object], reason: str) -> None:
    """Raise for the first of these options that is given."""
    for name, value in options.items():
        if value is not None:
            raise MetaAgentXError(f"--{name} {reason}")
