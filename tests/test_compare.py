"""`make compare`: the rule of the verdicts, its intervals, what it says is equal, and the pages that it writes."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.claim_pages import RESULTS_MARKS, draw, readme_part, results_page, write_docs
from benchmarks.claims import MARGIN, Evidence, Result, differences, gain_interval, interval, verdict_of
from benchmarks.compare import routed
from benchmarks.variants import (
    ALTERNATION,
    BY_TASK,
    JOINT,
    JOINT_EPOCHS,
    JOINT_STEPS,
    NO_ANCHOR,
    STAGES,
    WHOLE,
    Plan,
    Variant,
    variants,
)
from metaagentx.errors import MetaAgentXError

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def made() -> dict[str, Variant]:
    return variants(Plan())


def result(seed: int, *solved: float, method: str = "metaagentx", variant: str = WHOLE) -> Result:
    half = len(solved) // 2
    return Result(variant, seed, method, {"gym:a": solved[:half], "gym:b": solved[half:]}, 3, 0.125)


def test_the_verdict_follows_the_interval() -> None:
    assert verdict_of(0.1, 9) == "holds"
    assert verdict_of(0.1, MARGIN / 2) == "holds", "a small gain that is certain is a gain"
    assert verdict_of(0, 9) == "undecided"
    assert verdict_of(-9, MARGIN) == "undecided"
    assert verdict_of(-1, MARGIN - 0.1) == "does not", "if there is a gain, it is smaller than the margin"
    assert verdict_of(-9, -1) == "does not"


def test_intervals_are_paired_by_seed_and_task() -> None:
    # Seeds and tasks differ much, and on each task of each seed one is ahead by the same.
    lower = [result(0, 0, 1, 0, 1), result(1, 1, 1, 0, 0), result(2, 0, 0, 0, 1)]
    higher = [replace(r, solved={part: [x + 0.25 for x in tasks] for part, tasks in r.solved.items()}) for r in lower]
    gained = differences(list(reversed(higher)), [*lower, result(7, 1, 1, 1, 1)])
    assert [r.seed for r in gained] == [0, 1, 2]
    assert interval(gained) == pytest.approx((25, 25))
    low, high = interval(lower)
    assert low < 100 * sum(r.mean for r in lower) / 3 < high
    assert interval(lower) == (low, high), "the same numbers each time"


def test_an_interval_has_both_sources_of_chance() -> None:
    """With equal tasks only seeds vary, with equal seeds only tasks."""
    seeds = [result(seed, *[float(seed % 2)] * 4) for seed in range(4)]
    assert interval(seeds) == (0, 100)
    tasks = [result(seed, 0, 1, 0, 1) for seed in range(4)]
    assert interval(tasks) == (0, 100)
    assert interval([result(seed, 1, 1, 0, 0) for seed in range(4)]) == (50, 50), "families are not drawn again"


def test_variants_keep_equal_what_their_claims_say(made: dict[str, Variant]) -> None:
    base = made[STAGES].counts
    assert base.designer_updates > 0
    for name, variant in made.items():
        counts, against = variant.counts, made[variant.against].counts if variant.against else variant.counts
        if name == JOINT:
            assert counts.executions == base.executions
            assert counts[2:] == (2 * base.designer_updates, 2 * base.executor_updates)
        elif name == JOINT_STEPS:
            assert counts.executions * 2 == base.executions
            assert counts[2:] == base[2:]
        elif name.endswith("only"):
            assert counts.executions == against.executions
            assert sum(counts[2:]) == sum(against[2:])
            assert 0 in counts[2:]
        else:
            assert counts == against, name
    assert all(len(made[name].config.stages) >= 2 for name in (JOINT_EPOCHS, ALTERNATION))
    single = next(variant for name, variant in made.items() if name.endswith("designs x 1"))
    assert single.config.credit.executor_peers == "task"
    assert single.against == (BY_TASK if BY_TASK in made else STAGES), "only the shape differs"


def test_what_cannot_have_an_anchor_is_compared_with_none(made: dict[str, Variant]) -> None:
    for variant in made.values():
        if variant.against and variant.name != NO_ANCHOR:
            mine, others = (_anchored(each) for each in (variant, made[variant.against]))
            assert mine == others or variant.name.endswith("only"), variant.name


def _anchored(variant: Variant) -> float:
    """The largest anchor that has an effect."""
    config = variant.config
    acts = [stage.anchor for stage in config.stages if len(stage.learning_rates) == 1]
    return max(acts, default=0.0) if config.model.sharing == "shared" else 0.0


def test_a_difference_needs_seeds_that_agree() -> None:
    """A bootstrap of three seeds that all gain is above 0; Student's interval is not, if they differ much."""
    gained = [result(seed, *[share] * 4) for seed, share in enumerate((0.02, 0.26, 0.06))]
    assert interval(gained)[0] > 0 > gain_interval(gained)[0]
    assert gain_interval(gained)[1] > interval(gained)[1]
    alike = [result(seed, *[share] * 4) for seed, share in enumerate((0.24, 0.26, 0.25))]
    assert gain_interval(alike)[0] > 0
    assert verdict_of(1, 9, seeds=2) == "undecided"


def test_variants_as_long_as_the_recipe_are_measured_against_it(made: dict[str, Variant]) -> None:
    steps = made[WHOLE].config.steps
    cycle = 2 * sum(stage.steps for stage in made[WHOLE].config.stages)
    if steps % cycle == 0:
        same = variants(Plan(steps=steps))
        assert STAGES not in same
        assert same[NO_ANCHOR].against == WHOLE
    with pytest.raises(MetaAgentXError, match=f"expected a multiple of {cycle}"):
        variants(Plan(steps=cycle + 1))


METHODS = ("new designs old executor", "old designs new executor", "cold start", "single agent", "fixed: tool")


def evidence(made: dict[str, Variant]) -> Evidence:
    rows = [
        [
            result(seed, 1, 1, 1, 1),
            *(result(seed, 0, 1, 0, 0, method=method) for method in METHODS[:3]),
            result(seed, 0, 1, 0, 1, method="single agent"),
            result(seed, 1, 0, 0, 0, method="fixed: tool"),
            result(seed, 0, 1, 0, 1, method="self-consistency"),
        ]
        for seed in range(3)
    ]
    variant_rows = [result(0, 1, 1, 1, 0, variant=NO_ANCHOR), result(0, 1, 1, 1, 1, variant=JOINT)]
    results = [r for per_seed in rows for r in (*per_seed, *routed(per_seed))]
    return Evidence([*results, *variant_rows], made)


def test_every_claim_is_judged_by_its_own_figures(made: dict[str, Variant]) -> None:
    found = evidence(made)
    assert found.best_fixed[0] == "single agent"
    assert [r.mean for r in found.of(WHOLE, "router in hindsight")] == [0.5, 0.5, 0.5]
    assert [r.mean for r in found.of(WHOLE, "router")] == [0.25, 0.25, 0.25], "chosen on the other half"
    page = results_page(found)
    rows = {cells[2].strip(): cells for line in page.splitlines() if len(cells := line.split("|")) == 7}
    gain = next(cells for claim, cells in rows.items() if "more than the cold start" in claim)
    assert (gain[3].strip(), gain[5].strip()) == ("+75.0 (+75.0, +75.0, +75.0)", "holds")
    designer = next(cells for claim, cells in rows.items() if claim.startswith("The Designer learns"))
    assert (designer[3].strip(), designer[5].strip()) == ("+0.0 (+0.0, +0.0, +0.0)", "does not")
    joint = next(cells for claim, cells in rows.items() if "equal executions (joint makes twice" in claim)
    assert joint[3].strip() == "-25.0 (-25.0)", "the one seed that both have"
    assert "Not measured: designer only; executor only" in page
    assert f"- {designer[1].strip()}, " in page, "what could decide it is said"
    assert not any("one-step" in claim for claim in rows), "a claim without figures is not judged"


def test_one_command_writes_all_pages(made: dict[str, Variant], tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "results.md").write_text((ROOT / "docs" / "results.md").read_text())
    (tmp_path / "README.md").write_text((ROOT / "README.md").read_text())
    found = evidence(made)
    picture = draw({WHOLE: [(0.0, 0.5), (1.0, 0.75)], STAGES: [(0.0, 0.5)], JOINT: [(0.0, 0.25)]})
    write_docs(docs, found, picture)
    once = [path.read_text() for path in (docs / "results.md", tmp_path / "README.md", docs / "results.svg")]
    write_docs(docs, found, picture)
    assert [path.read_text() for path in (docs / "results.md", tmp_path / "README.md", docs / "results.svg")] == once
    assert results_page(found) in once[0]
    assert readme_part(found, picture=True) in once[1]
    assert "| single agent: the trained Executor, one agent | 50.0 | 50.0 |" in once[1]
    assert "writes 3 different scripts. 12.5 % of its designs cannot run." in " ".join(once[1].split())
    assert all(len(line) <= 120 or line.startswith(("|", "![")) for line in readme_part(found, True).splitlines())
    (docs / "results.md").write_text("no marks")
    with pytest.raises(MetaAgentXError, match=f"needs the marks {RESULTS_MARKS[0].strip()}"):
        write_docs(docs, found, picture)
    with pytest.raises(MetaAgentXError, match="need the recipe's own results"):
        write_docs(docs, Evidence([], made), None)


@pytest.mark.slow
def test_a_small_comparison_runs_resumes_and_writes_its_tables(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.compare", "--small", "--dir", str(tmp_path / "compare")]
    command += ["--seeds", "1", "--variant-seeds", "1", "--only", WHOLE, "--only", STAGES, "--only", JOINT]

    def run(*words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run([*command, *words], cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)

    first = run()
    assert first.returncode == 0, first.stderr
    assert "4/4  seed 0: " in first.stdout
    page = (tmp_path / "compare" / "results.md").read_text()
    assert page in first.stdout
    assert "joint makes twice the updates" in page
    again = run()
    assert again.returncode == 0
    assert "parts to do" not in again.stdout
    assert page in again.stdout
    wrong = run("--only", "nothing")
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("there is no variant 'nothing'; there are: recipe; designer only")
