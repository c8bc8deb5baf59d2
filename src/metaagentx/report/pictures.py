"""Which charts a report has, and what each is drawn from."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ..types import Role
from .charts import Line, Scale, View, area_chart, drawing, line_chart, lines_of, stacked, view_of
from .history import History, Series, short_names
from .svg import alone

ROLES = ((Role.EXECUTOR, "Executor", ""), (Role.DESIGNER, "Designer", "6 3"))
PARTS = ("outcome", "solution", "delivery", "cost")


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart with its words."""

    title: str
    caption: str
    draw: Callable[[View], str] | None
    """None: the run has nothing to draw it from."""
    missing: str = ""
    """What to say then."""

    def svg(self, view: View) -> str:
        """The picture; what is missing is not asked for."""
        assert self.draw is not None
        return drawing(self.draw(view), view, f"{self.title}. {self.caption}")


def reward_chart(history: History) -> Chart:
    """Both roles."""
    caption = "Mean reward of the executions and of the designs."
    return _lines("Reward of both roles", caption, _both(history, "reward/{}"))


def solved_chart(history: History) -> Chart:
    """What is solved in training, and of the tasks held out from it: shares, on an axis of their own."""
    solved, held_out = history.series("solved"), history.series("evaluation/solved")
    lines = [Line("training", solved, "c0")] if solved else []
    lines += [Line("held-out", held_out, "ink", dots=True)] if held_out else []
    caption = "Share of executions that solve their task." + (" Diamonds: of held-out tasks." if held_out else "")
    return _lines("Solved in training and held-out", caption, lines, scale="share")


def structure_chart(history: History) -> Chart:
    """Which workflows the Designer writes."""
    shares = history.whole("pattern")
    caption = "Share of each kind of workflow among the designs that can run, as a moving average."
    draw = (lambda view: area_chart(shares, view, "share")) if shares else None
    return Chart("Structures the Designer chooses", caption, draw, "no step of this run has a design that can run")


def outcome_charts(history: History) -> list[Chart]:
    """What is paid for, and what is solved."""
    by_source = history.under("solved")
    overall = [Line("all", solved, "ink")] if len(by_source) != 1 and (solved := history.series("solved")) else []
    names = short_names(list(by_source))
    parts = {name: history.series(f"reward/{name}") for name in PARTS}
    return [
        solved_chart(history),
        _lines(
            "Solved, by source",
            "Share of executions that solve their task.",
            overall + lines_of(by_source, names),
            scale="share",
        ),
        _lines("Parts of the reward", "Means before the recipe's weights; the cost is taken off.", lines_of(parts)),
    ]


def design_charts(history: History) -> list[Chart]:
    """How the groups look that are compared, and what goes wrong."""
    kinds = history.whole("faults", without=("designs", "executions"))
    kinds = {name: series for name, series in kinds.items() if any(value for _, value in series)}
    shares = {name: history.series(f"faults/{name}") for name in ("designs", "executions")}
    spread = {name: history.series(f"spread/{name}") for name in ("between", "within")}
    variety = {name: history.series(f"designs/{name}") for name in ("valid", "distinct")}
    entropy = {"entropy": history.series("designs/entropy")}
    flat = _both(history, "groups/{}_flat")
    return [
        _lines("Faults", "Share of designs and of executions with a fault of the model's.", lines_of(shares), "rate"),
        _lines("Faults by kind", "How many in a step.", lines_of(kinds), missing="no fault in any step"),
        _lines(
            "Spread of rewards",
            "Between the designs of a task, which the Designer learns from, and within a design.",
            lines_of(spread),
        ),
        _lines(
            "Variety of designs",
            "Share that can run, and share of different scripts for a task.",
            lines_of(variety),
            scale="share",
        ),
        _lines("Entropy of structures", "In nats; 0 when all designs of a step are of one kind.", lines_of(entropy)),
        _lines(
            "Groups that teach nothing", "Share of tasks in which a role's advantages are all 0.", flat, scale="share"
        ),
    ]


def work_charts(history: History) -> list[Chart]:
    """What it costs."""
    cut = {"cut off": history.series("replies/cut")}
    tokens = {"execution": history.series("tokens/per_execution"), "design": history.series("tokens/per_design")}
    calls = {"calls": history.series("calls/per_execution")}
    return [
        _lines("Tokens", "Written for an execution and for a design, in the mean.", lines_of(tokens)),
        _lines("Calls per execution", "How many replies of the Executor an execution takes.", lines_of(calls)),
        _lines("Replies cut off", "Share of replies of both that ended at the limit of tokens.", lines_of(cut), "rate"),
        _seconds(history),
    ]


def update_charts(history: History) -> list[Chart]:
    """What the updates say, of each role in the stages in which it learns."""
    wanted = (
        ("entropy", "Entropy", "Of the tokens learnt from, in nats."),
        ("approx_kl", "KL divergence", "Between the policy that sampled and the one that learns."),
        ("clip_share", "Clipped tokens", "Share of tokens whose ratio was clipped."),
        ("grad_norm", "Gradient norm", "Before it is clipped."),
    )
    charts = [
        _lines(title, caption, _both(history, f"{{}}/{name}"), "rate" if name == "clip_share" else "number")
        for name, title, caption in wanted
    ]
    return [chart for chart in charts if chart.draw]


def picture(history: History) -> str:
    """Reward, what is solved, and structures in one SVG file."""
    view = replace(view_of(history.steps, history.bands()), width=900, labels=160)
    charts = ((reward_chart(history), 220.0), (solved_chart(history), 175.0), (structure_chart(history), 175.0))
    shown = [(chart.title, chart.draw, height) for chart, height in charts if chart.draw]
    heights = [height for *_, height in shown]
    drawn = stacked([(title, draw) for title, draw, _ in shown], heights, view)
    return alone(drawn).replace("<svg", f'<svg width="900" height="{sum(heights):g}"', 1)


def _seconds(history: History) -> Chart:
    phases = history.whole("seconds", without=("step", "execution"))
    draw = (lambda view: area_chart(phases, view, smoothed=False)) if phases else None
    return Chart("Seconds by phase", "Time of a step, by what it was spent on.", draw, "no times were measured")


def _both(history: History, pattern: str) -> list[Line]:
    found: list[tuple[Series, Role, str, str]] = [
        (history.series(pattern.format(role)), role, name, dash) for role, name, dash in ROLES
    ]
    return [Line(name, series, str(role), dash) for series, role, name, dash in found if series]


def _lines(
    title: str,
    caption: str,
    lines: Sequence[Line],
    scale: Scale = "number",
    missing: str = "this run did not measure it",
) -> Chart:
    draw = (lambda view: line_chart(lines, view, scale)) if lines else None
    return Chart(title, caption, draw, missing)
