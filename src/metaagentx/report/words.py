"""What a run is and what was learnt in it, in words made from its figures."""

import re
from collections.abc import Callable, Iterator

from ..config import Config, StageConfig
from ..runs import Best, Run
from .charts import percent
from .history import Change, History, change, short_names
from .svg import number


def title_of(run: Run, config: Config | None, history: History) -> str:
    """What the page is about: the run's name, its recipe or else its tasks, and how far it is."""
    done = len(history.steps)
    whole = done if config is None else max(done, config.steps)
    steps = f"{done} of {whole} steps" if done < whole else f"{done} step{'s' * (done != 1)}"
    if run.recipe:
        return f"MetaAgent-X run {_run_name(run)}: {run.recipe}, {steps}"
    return f"MetaAgent-X run {_run_name(run)}: {steps}" + (f" on {_mixture(config.tasks.train)}" if config else "")


def facts(config: Config | None, history: History) -> Iterator[tuple[str, str]]:
    """What the run is, as pairs of a word and its meaning."""
    done = len(history.steps)
    if config is None:
        yield "Steps", f"{done} done"
        return
    yield "Steps", f"{done} of {config.steps}" + ("" if done >= config.steps else ": in progress, or stopped")
    sharing = {
        "shared": "both roles on one set of weights",
        "lora": "one LoRA for each role",
        "separate": "one model each",
    }
    yield "Model", f"{config.model.path} ({sharing[config.model.sharing]})"
    yield "Tasks", f"{_mixture(config.tasks.train)}; {config.tasks.per_step} a step, {config.tasks.held_out} held out"
    tree = config.rollout
    yield "Tree", f"{tree.designs} designs for each task, {tree.executions} executions of each design"
    yield "Stages", _stages(config.stages)
    weights = config.reward
    cost = f", less {number(weights.cost_per_call)} a call" if weights.cost_per_call else ""
    cost += f", less {number(weights.cost_per_1000_tokens)} per 1000 tokens" if weights.cost_per_1000_tokens else ""
    parts = (
        f"{number(weights.outcome)} outcome + {number(weights.solution)} solution + {number(weights.delivery)} delivery"
    )
    yield "Reward", parts + cost
    yield "Seed", str(config.seed)


def learnt(history: History, best: Best | None) -> str:
    """Two sentences: what changed from the first tenth of the run to the last, and what the Designer does now."""
    steps = len(history.steps)
    if steps < 2:
        return (
            "No step is finished yet, so there is nothing to tell." if not steps else "One step is too few to compare."
        )
    tenth = max(1, steps // 10)
    span = f"From the first {_count(tenth)} to the last {_count(tenth)} of {steps},"
    rates = [
        ("the share of executions that solve their task", change(history.series("solved")), percent),
        ("the Executor's mean reward", change(history.series("reward/executor")), number),
        ("the Designer's", change(history.series("reward/designer")), number),
    ]
    said = [f"{what} {_went(found, shown)}" for what, found, shown in rates if found]
    first = f"{span} {_joined(said)}." if said else f"{steps} steps are done, and none of them measured a reward."
    second = "; ".join(filter(None, [_structures(history), _held_out(history, best)]))
    return f"{first} {second[:1].upper()}{second[1:]}." if second else first


def tiles(history: History, best: Best | None) -> Iterator[tuple[str, str, str]]:
    """The figures to see first: a name, a figure, and what it was."""
    for name, title, shown in (
        ("solved", "solved in training", percent),
        ("reward/executor", "Executor's reward", number),
        ("reward/designer", "Designer's reward", number),
        ("tokens/per_execution", "tokens per execution", number),
    ):
        found = change(history.series(name))
        if found:
            yield title, shown(found.after), f"from {shown(found.before)}"
    held_out = history.series("evaluation/solved")
    if held_out:
        yield "held-out tasks solved", percent(held_out[-1][1]), f"after step {held_out[-1][0] + 1:.0f}"
    if best:
        yield "best checkpoint", f"step {best.step}", f"{percent(best.score)} of held-out tasks"


def _run_name(run: Run) -> str:
    """The directory's name, with the one above it where it says little alone: `quickstart/run`."""
    parts = run.directory.absolute().parts
    return "/".join(parts[-2:]) if parts[-1] == "run" or parts[-3:-2] == ("runs",) else parts[-1]


def _structures(history: History) -> str:
    shares = {name: found for name, series in history.whole("pattern").items() if (found := change(series))}
    if not shares:
        return ""
    before = max(shares, key=lambda name: shares[name].before)
    after = max(shares, key=lambda name: shares[name].after)
    if before == after:
        verb = _went(shares[after], percent)
        return f"the structure chosen most often was “{after}” throughout, whose share {verb}"
    return (
        f"the structure chosen most often was “{before}” at first ({percent(shares[before].before)}) "
        f"and “{after}” at last ({percent(shares[after].after)})"
    )


def _held_out(history: History, best: Best | None) -> str:
    found = history.series("evaluation/solved")
    if not found:
        return ""
    said = f"of the held-out tasks {percent(found[-1][1])} were solved at the last measurement"
    return said + (f", {percent(best.score)} at the best one, after step {best.step}" if best else "")


def _went(found: Change, shown: Callable[[float], str]) -> str:
    before, after = shown(found.before), shown(found.after)
    if before == after:
        return f"stayed at {after}"
    return f"{'rose' if found.after > found.before else 'fell'} from {before} to {after}"


def _stages(stages: list[StageConfig]) -> str:
    said = []
    for stage in stages:
        rates = (("Executor", stage.executor), ("Designer", stage.designer))
        who = " and ".join(f"{role} at {number(rate)}" for role, rate in rates if rate is not None)
        said.append(f"{stage.steps} steps {who}")
    return ", then ".join(said) + (", and over again" if len(said) > 1 else "")


def _mixture(train: str) -> str:
    parts = [re.sub(r"^\s*([\d.]+)\s*\*\s*", "", part).strip() for part in train.split(" + ")]
    weights = [re.match(r"\s*([\d.]+)\s*\*", part) for part in train.split(" + ")]
    names = short_names(parts)
    shown = [f"{weight[1]} × " if weight else "" for weight in weights]
    return ", ".join(f"{weight}{names[part]}" for weight, part in zip(shown, parts, strict=True))


def _count(steps: int) -> str:
    return "step" if steps == 1 else f"{steps} steps"


def _joined(parts: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(parts[:-1]), *parts[-1:]]))
