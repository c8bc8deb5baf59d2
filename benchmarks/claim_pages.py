"""What `benchmarks.claims` found, as Markdown for docs/results.md and README.md, and as a picture."""

import textwrap
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from benchmarks.claims import (
    DESIGNER_GAIN,
    EXECUTOR_GAIN,
    Claim,
    Evidence,
    Group,
    Result,
    differences,
    gain_interval,
    interval,
    verdict_of,
)
from benchmarks.drawing import Series, share_charts
from benchmarks.variants import (
    ALTERNATION,
    DESIGNER_ONLY,
    EXECUTOR_ONLY,
    JOINT,
    JOINT_EPOCHS,
    JOINT_STEPS,
    LONG,
    SHORT,
    STAGES,
    WHOLE,
)
from metaagentx.atomic import atomic_write
from metaagentx.errors import MetaAgentXError
from metaagentx.evaluation.methods import COLD, SINGLE, TRAINED, VOTES
from metaagentx.evaluation.routers import HINDSIGHT, ROUTER

RESULTS_MARKS = ("<!-- compared -->\n", "<!-- end -->")
README_MARKS = ("<!-- results -->\n", "<!-- end of results -->")
METHODS = {
    COLD: "cold start: the model before RL, its own designs",
    SINGLE: "single agent: the trained Executor, one agent",
    VOTES: "self-consistency: the same, several answers and a vote, at as many tokens as MetaAgent-X",
    ROUTER: "router: for each family the best fixed design, chosen on other tasks",
    TRAINED: "**MetaAgent-X**: the trained Designer and Executor",
    HINDSIGHT: "the router in hindsight, chosen on the same tasks: an upper bound",
}
"""The rows of README, with the best fixed design after self-consistency."""


def results_page(evidence: Evidence) -> str:
    """Return the generated part of docs/results.md."""
    parts = []
    if claims := evidence.claims():
        parts += [_claims(claims)]
    if methods := evidence.methods:
        seeds, tasks = len(methods[TRAINED]), sum(map(len, methods[TRAINED][0].solved.values()))
        steps = evidence.variants[WHOLE].counts.steps
        heading = f"The recipe as it stands, {steps} steps, by method ({_count(seeds, 'seed')}, {tasks} unseen tasks):"
        parts += [f"{heading}\n\n{_solved_table('method', methods)}", _families(methods), _designs(evidence)]
    if rows := {name: group for name in evidence.variants if (group := evidence.of(name))}:
        heading = "Variants: what the trained system solves, and what its Designer writes for them (mean over seeds):"
        parts += [f"{heading}\n\n{_variants(evidence, rows)}"]
    if missing := evidence.missing():
        parts += [f"Not measured: {'; '.join(missing)}.\n"]
    return "\n".join(parts)


def _claims(claims: Sequence[Claim]) -> str:
    """Return the claims with their verdicts, and what could decide those that do not hold here."""
    lines = [
        "| | claim | what we see: points, by seed | 95 % interval | verdict |",
        "| ---: | --- | --- | ---: | --- |",
    ]
    decided_by: defaultdict[str, list[str]] = defaultdict(list)
    for number, claim in enumerate(claims, 1):
        gained = differences(claim.higher, claim.lower)
        low, high = gain_interval(gained)
        verdict = verdict_of(low, high, len(gained))
        see = f"{_points(gained)} ({', '.join(f'{100 * result.mean:+z.1f}' for result in gained)})"
        lines.append(f"| {number} | {claim.text} | {see} | {low:+z.1f} to {high:+z.1f} | {verdict} |")
        if verdict != "holds":
            decided_by[claim.decide].append(str(number))
    text = "\n".join(lines) + "\n"
    if decided_by:
        text += "\nWhat could decide the claims that do not hold here:\n\n"
        text += "".join(f"- {', '.join(numbers)}: {decide}.\n" for decide, numbers in decided_by.items())
    return text


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _points(gained: Group) -> str:
    return f"{100 * fmean(result.mean for result in gained):+z.1f}"


def _solved_table(heading: str, groups: Mapping[str, Group]) -> str:
    families = list(next(iter(groups.values()))[0].solved)
    short = [family.removeprefix("gym:") for family in families]
    head = ["solved % (95 % interval)", "by seed", *short]
    lines = [f"| {heading} | {' | '.join(head)} |", f"| --- |{' ---: |' * len(head)}"]
    for name, group in groups.items():
        low, high = interval(group)
        parts = [f"{100 * fmean(fmean(r.solved[family]) for r in group):.0f}" for family in families]
        cells = [f"{_mean(group)} ({low:.0f} to {high:.0f})", _by_seed(group), *parts]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _mean(group: Group) -> str:
    return f"{100 * fmean(result.mean for result in group):.1f}"


def _by_seed(group: Group) -> str:
    return ", ".join(f"{100 * result.mean:.1f}" for result in group)


def _families(methods: Mapping[str, Group]) -> str:
    """Return what each family gains."""
    lines = [
        "Every family by itself, against its cold start:\n",
        "| family | cold start % | trained % | points, by seed | 95 % interval | verdict |",
        "| --- | ---: | ---: | --- | ---: | --- |",
    ]
    for family in methods[TRAINED][0].solved:
        old, new = ([_only(result, family) for result in methods[name]] for name in (COLD, TRAINED))
        gained = differences(new, old)
        low, high = gain_interval(gained)
        see = f"{_points(gained)} ({', '.join(f'{100 * result.mean:+z.0f}' for result in gained)})"
        cells = [
            family,
            _mean(old),
            _mean(new),
            see,
            f"{low:+z.1f} to {high:+z.1f}",
            verdict_of(low, high, len(gained)),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _only(result: Result, family: str) -> Result:
    return Result(result.variant, result.seed, result.method, {family: result.solved[family]})


def _designs(evidence: Evidence) -> str:
    """Return what the Designers write for the unseen tasks."""
    lines = [
        "The designs that are written for these tasks, one for each, by seed:\n",
        "| Designer | different scripts that can run | designs that cannot run, % |",
        "| --- | ---: | ---: |",
    ]
    for name, method in (("cold start", COLD), ("trained", TRAINED)):
        group = [result for result in evidence.of(WHOLE, method) if result.invalid is not None]
        scripts = ", ".join(str(result.scripts) for result in group)
        invalid = ", ".join(f"{100 * result.invalid:.1f}" for result in group if result.invalid is not None)
        lines.append(f"| {name} | {scripts} | {invalid} |")
    return "\n".join(lines) + "\n"


def _variants(evidence: Evidence, rows: Mapping[str, Group]) -> str:
    """Return what each variant costs, solves and writes."""
    head = ["steps", "executions", "updates: Designer, Executor", "solved % (95 % interval)", "by seed"]
    head += ["different scripts", "cannot run, %"]
    lines = [f"| variant | {' | '.join(head)} |", f"| --- |{' ---: |' * len(head)}"]
    for name, group in rows.items():
        low, high = interval(group)
        counts = evidence.variants[name].counts
        updates = f"{counts.designer_updates:,}, {counts.executor_updates:,}"
        solved = f"{_mean(group)} ({low:.0f} to {high:.0f})"
        cells = [str(counts.steps), f"{counts.executions:,}", updates, solved, _by_seed(group)]
        cells += [f"{fmean(result.scripts or 0 for result in group):.0f}"]
        cells += [f"{100 * fmean(result.invalid or 0.0 for result in group):.1f}"]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def readme_part(evidence: Evidence, picture: bool) -> str:
    """Return the generated part of README.md; the picture only if there is one."""
    methods = evidence.methods
    best, best_group = evidence.best_fixed
    ours = methods[TRAINED]
    seeds = [result.seed for result in ours]
    tasks = sum(map(len, ours[0].solved.values()))
    calls = evidence.variants[WHOLE].config.rollout.calls
    about = (
        f"Results over {_count(len(seeds), 'seed')}: percentage of {tasks} unseen tasks of the test split solved, "
        f"one sample each, with at most {calls} calls a task. Each seed is a run of the whole recipe (`make compare`); "
        "`make quickstart` trains seed 0."
    )
    lines = [
        _wrapped(about),
        "",
        f"| method | {' | '.join(f'seed {seed}' for seed in seeds)} | mean (95 % interval) |",
        f"|---|{'---:|' * (len(seeds) + 1)}",
    ]
    named = {COLD: METHODS[COLD], SINGLE: METHODS[SINGLE], VOTES: METHODS[VOTES]}
    named |= {best: f"{best.removeprefix('fixed: ')}, always: the best fixed design"} if best not in named else {}
    for name, text in (named | METHODS).items():
        if group := methods.get(name):
            low, high = interval(group)
            cells = [*(f"{100 * result.mean:.1f}" for result in group), f"{_mean(group)} ({low:.0f} to {high:.0f})"]
            lines.append(f"| {text} | {' | '.join(cells)} |")
    grid = {name: _mean(methods[name]) for name in (COLD, EXECUTOR_GAIN, DESIGNER_GAIN, TRAINED)}
    lines += [
        "",
        f"| mean of {_count(len(seeds), 'seed')} | old Executor | new Executor |",
        "|---|---:|---:|",
        f"| old designs | {grid[COLD]} | {grid[EXECUTOR_GAIN]} |",
        f"| new designs | {grid[DESIGNER_GAIN]} | {grid[TRAINED]} |",
        "",
    ]
    designer, executor = (_gain(methods[name], methods[COLD]) for name in (DESIGNER_GAIN, EXECUTOR_GAIN))
    sentences = [
        f"Both roles together gain {_gain(ours, methods[COLD])}; with the other role as it was, the Designer gains "
        f"{designer} and the Executor {executor}.",
        f"The difference to the best fixed design is {_gain(ours, best_group)}.",
    ]
    if ROUTER in methods:
        sentences += [f"The difference to the router is {_gain(ours, methods[ROUTER])}."]
    scripts = sorted(result.scripts for result in ours if result.scripts is not None)
    if scripts:
        span = f"{scripts[0]}" if scripts[0] == scripts[-1] else f"{scripts[0]} to {scripts[-1]}"
        invalid = 100 * fmean(result.invalid for result in ours if result.invalid is not None)
        sentences += [f"For the {tasks} tasks its Designer writes {span} different scripts."]
        sentences += [f"{invalid:.1f} % of its designs cannot run."]
    sentences += ["[docs/results.md](docs/results.md) has the paper's claims one by one, with intervals and verdicts."]
    lines += [_wrapped(" ".join(sentences))]
    if picture:
        lines += ["", "![Share of training executions that solve their task, step by step](docs/results.svg)"]
    return "\n".join(lines) + "\n"


def _wrapped(text: str) -> str:
    """Return lines of at most 120 characters. Links and words with hyphens stay in one piece."""
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


def _gain(higher: Group, lower: Group) -> str:
    gained = differences(higher, lower)
    low, high = gain_interval(gained)
    return f"{_points(gained)} points ({low:+z.0f} to {high:+z.0f})"


def draw(curves: Mapping[str, Series]) -> str:
    """Return what is solved in training, mean over seeds, as one picture of up to three charts."""
    base = STAGES if STAGES in curves else WHOLE
    groups = {
        "Share of training executions that solve their task: who learns": [WHOLE, DESIGNER_ONLY, EXECUTOR_ONLY],
        "When the roles learn": [base, JOINT, JOINT_STEPS, JOINT_EPOCHS, ALTERNATION, SHORT, LONG],
    }
    others = [name for name in curves if name not in {name for names in groups.values() for name in names}]
    groups["What is compared, and which weights"] = [base, *others]
    charts: list[tuple[str, dict[str, Series]]] = []
    for heading, names in groups.items():
        lines = {name: curves[name] for name in names if name in curves}
        if len(lines) > 1 or (WHOLE in lines and not charts):
            charts.append((heading, lines))
    return share_charts(charts)


def write_docs(docs: Path, evidence: Evidence, picture: str | None) -> None:
    """Write the generated parts of results.md and of README.md beside the directory, and the picture."""
    if not evidence.methods:
        raise MetaAgentXError("the tables of README.md need the recipe's own results: run without --only first")
    replace_between(docs / "results.md", RESULTS_MARKS, results_page(evidence))
    replace_between(docs.parent / "README.md", README_MARKS, readme_part(evidence, picture is not None))
    if picture is not None:
        atomic_write(docs / "results.svg", picture.encode())


def replace_between(page: Path, marks: tuple[str, str], text: str) -> None:
    """Replace what stands between two marks of a page."""
    start, end = marks
    content = page.read_text()
    if content.count(start) != 1 or end not in content.partition(start)[2]:
        raise MetaAgentXError(f"{page} needs the marks {start.strip()} and {end} once, around what is generated")
    before, _, rest = content.partition(start)
    atomic_write(page, f"{before}{start}{text}{end}{rest.partition(end)[2]}".encode())
