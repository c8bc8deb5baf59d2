"""Which charts a report has, and which metrics each shows."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ..evaluation.names import short_names
from ..types import Role
from .charts import Line, Scale, View, area_chart, drawing, line_chart, lines_of, stack_charts, view_of
from .history import History
from .svg import standalone_svg

ROLES = ((Role.EXECUTOR, "Executor", ""), (Role.DESIGNER, "Designer", "6 3"))


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart with its texts."""

    title: str
    caption: str
    draw: Callable[[View], str] | None
    """None: the run has no data for it."""
    missing: str = "this run did not measure it"
    """What the page says then."""

    def svg(self, view: View) -> str:
        """Return the drawing of a chart that has data."""
        assert self.draw is not None
        return drawing(self.draw(view), view, f"{self.title}. {self.caption}")


def reward_chart(history: History) -> Chart:
    """Show the rewards of both roles."""
    caption = "Mean reward of the executions and of the designs."
    return _lines("Reward of both roles", caption, _by_role(history, "reward/{}"))


def pattern_chart(history: History) -> Chart:
    """Show which workflow patterns the Designer chooses."""
    shares = history.filled_group("pattern")
    caption = "Share of each pattern among the designs that can run, as a moving average."
    draw = (lambda view: area_chart(shares, view, "share")) if shares else None
    return Chart("Workflow patterns", caption, draw, "no step of this run has a design that can run")


def solved_chart(history: History) -> Chart:
    """Show how many training tasks and held-out tasks are solved."""
    solved, held_out = history.series("solved"), history.series("evaluation/solved")
    lines = [Line("training", solved, "c0")] if solved else []
    lines += [Line("held-out", held_out, "ink", dots=True)] if held_out else []
    caption = "Share of executions that solve their task." + (" Diamonds: of held-out tasks." if held_out else "")
    return _lines("Solved in training and held-out", caption, lines, "share")


def outcome_charts(history: History) -> list[Chart]:
    """Show solve rates and the parts of the reward."""
    by_source = history.group("solved")
    overall = [Line("all", solved, "ink")] if len(by_source) != 1 and (solved := history.series("solved")) else []
    sources = lines_of(by_source, short_names(by_source))
    parts = _named(history, {name: f"reward/{name}" for name in ("outcome", "solution", "delivery", "cost")})
    return [
        solved_chart(history),
        _lines("Solved, by source", "Share of executions that solve their task.", overall + sources, "share"),
        _lines("Parts of the reward", "Means before the recipe's weights; the cost is subtracted.", parts),
    ]


def design_charts(history: History) -> list[Chart]:
    """Show faults, and how much the designs and rewards of a group differ."""
    kinds = history.filled_group("faults", without=("designs", "executions"))
    kinds = {name: series for name, series in kinds.items() if any(value for _, value in series)}
    faults = _named(history, {"designs": "faults/designs", "executions": "faults/executions"})
    spread = _named(history, {"between": "spread/between", "within": "spread/within"})
    variety = _named(history, {"valid": "designs/valid", "distinct": "designs/distinct"})
    entropy = _named(history, {"entropy": "designs/entropy"})
    flat = _by_role(history, "groups/{}_flat")
    between = "Between the designs of a task, which the Designer learns from, and within a design."
    return [
        _lines("Faults", "Share of designs and of executions with a fault of the model.", faults, "rate"),
        replace(_lines("Faults by kind", "Number in a step.", lines_of(kinds)), missing="no fault in any step"),
        _lines("Spread of rewards", between, spread),
        _lines(
            "Variety of designs", "Share that can run, and share of different scripts for a task.", variety, "share"
        ),
        _lines("Entropy of patterns", "In nats; 0 when all designs of a step have the same pattern.", entropy),
        _lines("Groups that teach nothing", "Share of tasks in which a role's advantages are all 0.", flat, "share"),
    ]


def update_charts(history: History) -> list[Chart]:
    """Show the metrics of the updates, of each role in the stages in which it learns."""
    charts = [
        _lines("Entropy", "Of the trained tokens, in nats.", _by_role(history, "{}/entropy")),
        _lines("KL divergence", "Between the sampling policy and the trained one.", _by_role(history, "{}/approx_kl")),
        _lines(
            "Clipped tokens", "Share of tokens whose ratio was clipped.", _by_role(history, "{}/clip_share"), "rate"
        ),
        _lines("Gradient norm", "Before clipping.", _by_role(history, "{}/grad_norm")),
    ]
    return [chart for chart in charts if chart.draw]


def work_charts(history: History) -> list[Chart]:
    """Show tokens, calls and time."""
    tokens = _named(history, {"execution": "tokens/per_execution", "design": "tokens/per_design"})
    calls = _named(history, {"calls": "calls/per_execution"})
    cut = _named(history, {"cut off": "replies/cut"})
    phases = history.filled_group("seconds", without=("step", "execution"))
    draw = (lambda view: area_chart(phases, view, smoothed=False)) if phases else None
    return [
        _lines("Tokens", "Mean tokens of an execution and of a design.", tokens),
        _lines("Calls per execution", "Mean number of replies of the Executor.", calls),
        _lines("Replies cut off", "Share of replies of both roles that ended at the token limit.", cut, "rate"),
        Chart("Seconds by phase", "Time of a step by phase.", draw, "no times were measured"),
    ]


def picture(history: History) -> str:
    """Return reward, solve rates and workflow patterns as one SVG file."""
    view = replace(view_of(history.steps, history.bands()), width=900, labels=160)
    charts = ((reward_chart(history), 220.0), (solved_chart(history), 175.0), (pattern_chart(history), 175.0))
    shown = [(chart.title, chart.draw, height) for chart, height in charts if chart.draw]
    height = sum(height for *_, height in shown)
    return standalone_svg(stack_charts(shown, view)).replace("<svg", f'<svg width="900" height="{height:g}"', 1)


def _named(history: History, metrics: Mapping[str, str]) -> list[Line]:
    return lines_of({label: history.series(name) for label, name in metrics.items()})


def _by_role(history: History, pattern: str) -> list[Line]:
    lines = [Line(name, history.series(pattern.format(role)), str(role), dash) for role, name, dash in ROLES]
    return [line for line in lines if line.series]


def _lines(title: str, caption: str, lines: Sequence[Line], scale: Scale = "number") -> Chart:
    return Chart(title, caption, (lambda view: line_chart(lines, view, scale)) if lines else None)
