"""What a run is and what was learned in it, as sentences made from its metrics."""

import re
from collections.abc import Callable, Iterator, Sequence

from ..config import Config, StageConfig
from ..evaluation.names import short_names
from ..runs import Best, Run
from .history import Change, History, change
from .text import number, percent

_SHARING = {
    "shared": "both roles on one set of weights",
    "lora": "one LoRA for each role",
    "separate": "one model for each role",
}


def page_title(run: Run, config: Config | None, history: History) -> str:
    """Return the run's name, its recipe or else its tasks, and how many steps are done."""
    done = len(history.steps)
    total = done if config is None else max(done, config.steps)
    steps = f"{done} of {total} steps" if done < total else f"{done} step{'s' * (done != 1)}"
    parts = run.directory.absolute().parts
    # With the parent where the name alone says little: `quickstart/run`.
    name = "/".join(parts[-2:]) if parts[-1] == "run" or parts[-3:-2] == ("runs",) else parts[-1]
    if run.recipe:
        return f"MetaAgent-X run {name}: {run.recipe}, {steps}"
    return f"MetaAgent-X run {name}: {steps}" + (f" on {_mixture(config.tasks.train)}" if config else "")


def settings(config: Config | None, history: History) -> Iterator[tuple[str, str]]:
    """Yield the main settings of the run, each with its name."""
    done = len(history.steps)
    if config is None:
        yield "Steps", f"{done} done"
        return
    yield "Steps", f"{done} of {config.steps}" + ("" if done >= config.steps else ": in progress, or stopped")
    yield "Model", f"{config.model.path} ({_SHARING[config.model.sharing]})"
    tasks, tree, reward = config.tasks, config.rollout, config.reward
    yield "Tasks", f"{_mixture(tasks.train)}; {tasks.per_step} a step, {tasks.held_out} held out"
    yield "Tree", f"{tree.designs} designs for each task, {tree.executions} executions of each design"
    yield "Stages", _stages(config.stages)
    parts = [f"{number(getattr(reward, name))} {name}" for name in ("outcome", "solution", "delivery")]
    cost = f", less {number(reward.cost_per_call)} a call" if reward.cost_per_call else ""
    cost += f", less {number(reward.cost_per_1000_tokens)} per 1000 tokens" if reward.cost_per_1000_tokens else ""
    yield "Reward", " + ".join(parts) + cost
    yield "Seed", str(config.seed)


def what_was_learned(history: History, best: Best | None) -> str:
    """Return two sentences: what changed from the first tenth of the run to the last, and which designs are chosen."""
    steps = len(history.steps)
    if steps < 2:
        return "One step is too few to compare." if steps else "No step is finished yet."
    tenth = max(1, steps // 10)
    count = "step" if tenth == 1 else f"{tenth} steps"
    metrics = [
        ("the share of executions that solve their task", "solved", percent),
        ("the Executor's mean reward", "reward/executor", number),
        ("the Designer's mean reward", "reward/designer", number),
    ]
    changes = [(what, change(history.series(name)), show) for what, name, show in metrics]
    clauses = [f"{what} {_verb(ends, show)}" for what, ends, show in changes if ends]
    first = f"{steps} steps are done, and none of them measured a reward."
    if clauses:
        first = f"From the first {count} to the last {count} of {steps}, {_join(clauses)}."
    second = "; ".join(filter(None, [_chosen_patterns(history), _held_out(history, best)]))
    return f"{first} {second[:1].upper()}{second[1:]}." if second else first


def tiles(history: History, best: Best | None) -> Iterator[tuple[str, str, str]]:
    """Yield the most important figures: a name, the figure, and a note."""
    for name, title, show in (
        ("solved", "solved in training", percent),
        ("reward/executor", "Executor's reward", number),
        ("reward/designer", "Designer's reward", number),
        ("tokens/per_execution", "tokens per execution", number),
    ):
        ends = change(history.series(name))
        if ends:
            yield title, show(ends.after), f"from {show(ends.before)}"
    held_out = history.series("evaluation/solved")
    if held_out:
        yield "held-out tasks solved", percent(held_out[-1][1]), f"after step {held_out[-1][0] + 1:.0f}"
    if best:
        yield "best checkpoint", f"step {best.step}", f"{percent(best.score)} of held-out tasks"


def _chosen_patterns(history: History) -> str:
    shares = {name: ends for name, series in history.filled_group("pattern").items() if (ends := change(series))}
    if not shares:
        return ""
    before = max(shares, key=lambda name: shares[name].before)
    after = max(shares, key=lambda name: shares[name].after)
    if before == after:
        verb = _verb(shares[after], percent)
        return f"the workflow pattern chosen most often was “{after}” throughout, whose share {verb}"
    return (
        f"the workflow pattern chosen most often was “{before}” at first ({percent(shares[before].before)}) "
        f"and “{after}” at the end ({percent(shares[after].after)})"
    )


def _held_out(history: History, best: Best | None) -> str:
    series = history.series("evaluation/solved")
    if not series:
        return ""
    last = f"of the held-out tasks {percent(series[-1][1])} were solved at the last measurement"
    return last + (f", {percent(best.score)} at the best one, after step {best.step}" if best else "")


def _verb(ends: Change, show: Callable[[float], str]) -> str:
    before, after = show(ends.before), show(ends.after)
    if before == after:
        return f"stayed at {after}"
    return f"{'rose' if ends.after > ends.before else 'fell'} from {before} to {after}"


def _stages(stages: Sequence[StageConfig]) -> str:
    texts = []
    for stage in stages:
        rates = (("Executor", stage.executor), ("Designer", stage.designer))
        roles = " and ".join(f"{role} at {number(rate)}" for role, rate in rates if rate is not None)
        texts.append(f"{stage.steps} steps {roles}")
    return ", then ".join(texts) + (", repeated" if len(texts) > 1 else "")


def _mixture(train: str) -> str:
    """Return the parts of a mixture by short names. Also accepts a text that is not a valid mixture."""
    parts = [re.fullmatch(r"\s*(?:([\d.]+)\s*\*)?\s*(.*?)\s*", part, re.DOTALL) for part in train.split(" + ")]
    sources = [(part[1], part[2]) for part in parts if part]
    names = short_names(source for _, source in sources)
    return ", ".join(f"{weight} × {names[source]}" if weight else names[source] for weight, source in sources)


def _join(clauses: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(clauses[:-1]), *clauses[-1:]]))
