"""Methods compared on the same tasks, with scripted policies and a real sandbox; figures by hand and by brute force."""

import asyncio
import itertools
import json
import random
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaagentx.backends.scripted import ScriptedPolicy
from metaagentx.cli.evaluation_request import RunRequest, evaluate_run, task_sets
from metaagentx.errors import MetaAgentXError
from metaagentx.evaluation import Evaluation, EvaluationOptions, Method, Outcome, evaluate, pass_at, standard_methods
from metaagentx.evaluation.figures import Comparison, compare, interval, mean_tokens, summarize
from metaagentx.evaluation.methods import standard_names
from metaagentx.evaluation.published import PUBLISHED
from metaagentx.evaluation.result import comparison_cells
from metaagentx.evaluation.self_consistency import majority_outcome
from metaagentx.policy import BackendError
from metaagentx.rewards.graders import Graders
from metaagentx.rollout.sampling import RoleSampler
from metaagentx.runs import Run
from metaagentx.runs.work import weights_digest
from metaagentx.sandbox import Sandbox
from metaagentx.tasks import SOURCES
from metaagentx.tasks.paper import PAPER_SETS
from metaagentx.types import CodeTests, FinalAnswer, MathGold, Role, Task
from tests.rollout_helpers import HEAD, RUN, SINGLE, TOOL, VOTE, Actor, Reply, design, resources
from tests.tasks.files import made_up, write


def task(number: int) -> Task:
    return Task(f"test/{number}", "math", f"What is {number} + 1?", MathGold((str(number + 1),)), "test", "test")


TASKS = {"small": [task(number) for number in range(4)], "large": [task(number) for number in range(10, 16)]}


def adds(accuracy: float) -> Reply:
    """Add rightly in this share of all cases, by the seed."""

    def reply(conversation: list[dict[str, str]], seed: int) -> str:
        number = int(conversation[1]["content"].split("What is ")[1].split(" ")[0])
        chance = random.Random(seed)
        right = chance.random() < accuracy
        return "Well. " * chance.randrange(4) + rf"<delivery>\boxed{{{number + (1 if right else 2)}}}</delivery>"

    return reply


def designs(conversation: list[dict[str, str]], seed: int) -> str:
    return design(VOTE if seed % 2 else SINGLE)


def samplers(designer: Actor, executor: Actor) -> dict[Role, RoleSampler]:
    return {
        Role.DESIGNER: RoleSampler(Role.DESIGNER, designer, 4096, retries=0),
        Role.EXECUTOR: RoleSampler(Role.EXECUTOR, executor, 4096, retries=0),
    }


def fixed(name: str, executor: Actor, script: str = SINGLE, token_budget_of: str = "") -> Method:
    return Method(name, samplers(executor, executor)[Role.EXECUTOR], script=script, token_budget_of=token_budget_of)


def designed(name: str, designer: Actor, executor: Actor) -> Method:
    both = samplers(designer, executor)
    return Method(name, both[Role.EXECUTOR], designer=both[Role.DESIGNER])


Measure = Callable[..., Evaluation]


@pytest.fixture
def measure(runner: asyncio.Runner, sandbox: Sandbox, graders: Graders, tmp_path: Path) -> Measure:
    """Evaluate methods on TASKS, into a directory of the test."""

    def run(
        *methods: Method, directory: str = "evaluation", sets: dict[str, list[Task]] = TASKS, **options: Any
    ) -> Evaluation:
        shared = resources(ScriptedPolicy([]), ScriptedPolicy([]), sandbox, graders)
        return runner.run(evaluate(methods, sets, shared, EvaluationOptions(**options), tmp_path / directory))

    return run


def timeless(evaluation: Evaluation) -> dict[tuple[str, str], list[Outcome]]:
    return {
        key: [replace(outcome, seconds=0.0) for outcome in outcomes] for key, outcomes in evaluation.outcomes.items()
    }


def outcome(number: int, sample: int = 0, solved: bool = False, answer: str = "", **others: Any) -> Outcome:
    return Outcome(**{"task": f"t{number}", "sample": sample, "vote": 0, "solved": solved, "tokens": 10, "calls": 1,
                      "seconds": 1.0, "pattern": "single", "answer": FinalAnswer.parse(answer) if answer else None,
                      **others})  # fmt: skip


def test_methods_with_the_same_designer_execute_the_same_designs(measure: Measure) -> None:
    written = []

    def write(conversation: list[dict[str, str]], seed: int) -> str:
        written.append(seed)
        return designs(conversation, seed)

    one, other = (designed(name, Actor(write), Actor(adds(skill))) for name, skill in (("one", 1.0), ("other", 0.0)))
    evaluation = measure(one, replace(other, designer=one.designer))
    assert len(written) == len(set(written)) == 10, "each task has one design"
    ours, theirs = (evaluation.outcomes[name, "small"] for name in ("one", "other"))
    assert [outcome.pattern for outcome in ours] == [outcome.pattern for outcome in theirs]
    assert all(outcome.solved for outcome in ours) and not any(outcome.solved for outcome in theirs)


def test_the_figures_of_a_small_example() -> None:
    first = [
        outcome(0, 0, True, tokens=30, calls=3, pattern="ensemble"),
        outcome(0, 1, False, tokens=10),
        outcome(1, 0, True, tokens=10, seconds=4.0),
        outcome(1, 1, fault="infra", tokens=999),
        outcome(2, 0, fault="infra"),
        outcome(2, 1, fault="infra"),
    ]
    second = [outcome(0, 0, fault="no_script", pattern=""), outcome(0, 1, True)]
    row = summarize("ours", [first, second])
    # Of the first set task 0 counts 1/2, task 1 counts 1, task 2 nothing; of the second the one task counts 1/2.
    assert row.average == pytest.approx((0.75 + 0.5) / 2)
    assert (row.tasks, row.infra, row.fault_kinds) == (3, 3, {"no_script": 1})
    assert row.passes == {1: pytest.approx(0.625), 2: pytest.approx(1.0)}
    assert row.tokens == pytest.approx(((20 + 10) / 2 + 10) / 2)
    assert row.calls == pytest.approx(((2 + 1) / 2 + 1) / 2)
    assert row.seconds == pytest.approx(((1 + 4) / 2 + 1) / 2)
    assert row.faults == pytest.approx((0 + 0.5) / 2)
    assert row.patterns == pytest.approx({"single": (2 / 3 + 1 / 2) / 2, "none": 0.25, "ensemble": 1 / 6})
    assert row.low < row.average < row.high


def test_a_paired_comparison_by_hand() -> None:
    ours = [outcome(0, 0, True), outcome(1, 0, True), outcome(2), outcome(3, fault="infra")]
    theirs = [outcome(0), outcome(1, 0, True), outcome(2), outcome(3), outcome(4, 0, True)]
    pair = compare(("ours", "theirs"), [(ours, theirs)])
    assert (pair.tasks, pair.wins, pair.losses, pair.ties) == (3, 1, 0, 2)
    assert pair.difference == pytest.approx(1 / 3)
    back = compare(("theirs", "ours"), [(theirs, ours)])
    assert (back.difference, back.wins, back.losses) == (-pair.difference, 0, 1)


def test_a_comparison_with_itself_is_exactly_nothing() -> None:
    own = [outcome(number, 0, number % 3 == 0) for number in range(30)]
    pair = compare(("a", "b"), [(own, own)])
    assert (pair.difference, pair.low, pair.high, pair.ties) == (0.0, 0.0, 0.0, 30)


@given(st.integers(1, 8).flatmap(lambda count: st.tuples(st.just(count), st.integers(0, count), st.integers(1, count))))
def test_pass_at_k_is_the_mean_over_all_choices(case: tuple[int, int, int]) -> None:
    count, solved, k = case
    samples = [True] * solved + [False] * (count - solved)
    assert pass_at(k, count, solved) == pytest.approx(fmean(map(any, itertools.combinations(samples, k))))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=1, max_size=20), min_size=1, max_size=3))
def test_an_interval_lies_within_the_values_and_is_the_same_every_time(strata: list[list[float]]) -> None:
    low, high = interval(strata)
    assert fmean(map(min, strata)) - 1e-9 <= low <= high <= fmean(map(max, strata)) + 1e-9
    assert (low, high) == interval(strata)
    if all(len(set(stratum)) == 1 for stratum in strata):
        assert low == pytest.approx(high)


@pytest.mark.parametrize("count", [40, 400])
def test_an_interval_is_as_wide_as_theory_says(count: int) -> None:
    low, high = interval([[1.0] * (count // 2) + [0.0] * (count // 2)])
    assert high - low == pytest.approx(2 * 1.96 * 0.5 / count**0.5, rel=0.12)
    assert (low + high) / 2 == pytest.approx(0.5, abs=0.02)


def test_votes_compare_values_as_values(runner: asyncio.Runner) -> None:
    def elected(*votes: Outcome) -> Outcome:
        return runner.run(majority_outcome("What?", votes))

    half, fraction = outcome(0, answer=r"\boxed{0.5}", solved=True), outcome(0, answer=r"so \boxed{\frac{1}{2}}")
    other, silent = outcome(0, answer=r"\boxed{3}"), outcome(0, fault="no_answer")
    won = elected(other, half, fraction, silent)
    assert (won.solved, won.answer, won.tokens, won.calls, won.seconds) == (True, half.answer, 40, 4, 1.0)
    assert elected(other, half).answer == other.answer  # a tie: the earliest
    assert elected(silent, silent).fault == "no_answer"
    failed = outcome(0, fault="infra", tokens=5)
    assert (elected(failed, half).tokens, elected(failed, failed).judged) == (10, False)
    programs = [outcome(0, answer=f"<solution>print({number})</solution>") for number in (1, 2, 2)]
    assert elected(*programs).answer == programs[0].answer


def test_all_methods_have_the_same_tasks_and_seeds(measure: Measure) -> None:
    executors = [Actor(adds(0.5)) for _ in range(4)]
    designers = [Actor(designs), Actor(designs)]
    methods = [
        designed("one", designers[0], executors[0]),
        designed("other", designers[1], executors[1]),
        fixed("single", executors[2]),
        fixed("vote", executors[3], VOTE),
    ]
    evaluation = measure(*methods, samples=2)
    seeds = [{params.seed for params in actor.asked} for actor in (*designers, *executors)]
    assert seeds[0] == seeds[1] and seeds[2] == seeds[3]
    assert len(seeds[0]) == len(designers[0].asked) == 20
    assert seeds[4] < seeds[2] <= seeds[5]  # a script's first call, then the second and third of a vote
    assert timeless(evaluation)["one", "small"] == timeless(evaluation)["other", "small"]
    backwards = measure(*reversed(methods), directory="backwards", samples=2)
    assert timeless(backwards) == timeless(evaluation)
    assert timeless(measure(*methods, directory="other seed", samples=2, seed=1)) != timeless(evaluation)


def test_an_evaluation_knows_what_happened(measure: Measure) -> None:
    replies = itertools.cycle(["I would ask three experts.", design(SINGLE), design(VOTE), design(TOOL)])
    mixed = Actor(lambda conversation, seed: next(replies))
    evaluation = measure(designed("mixed", mixed, Actor(adds(1.0))), sets={"small": TASKS["small"]}, at_once=1)
    own = evaluation.outcomes["mixed", "small"]
    assert [(o.task, o.solved, o.calls, o.fault, o.pattern) for o in own] == [
        ("test/0", False, 1, "no_script", ""),
        ("test/1", True, 2, "", "single"),
        ("test/2", True, 4, "", "ensemble"),
        ("test/3", True, 2, "", "single+tools"),
    ]
    written = len(design(SINGLE)) + 1
    assert own[1].tokens in {written + len(r"<delivery>\boxed{2}</delivery>") + 1 + 6 * words for words in range(4)}
    row = evaluation.overall.rows[0]
    assert (row.average, row.faults) == (0.75, 0.25)
    assert row.patterns == {"ensemble": 0.25, "none": 0.25, "single": 0.25, "single+tools": 0.25}


@pytest.mark.parametrize("with_single", [False, True])
def test_self_consistency_has_at_least_the_budget(measure: Measure, with_single: bool) -> None:
    executor = Actor(adds(0.6))
    ours = fixed("ours", Actor(adds(0.6)), VOTE)
    sampler = fixed("votes", executor)
    single = [replace(sampler, name="single")] if with_single else []
    evaluation = measure(replace(sampler, token_budget_of="ours"), *single, ours, samples=2, seed=3)
    for name in TASKS:
        votes = evaluation.votes["votes"][name]
        spent, budget = (mean_tokens(evaluation.outcomes[method, name]) for method in ("votes", "ours"))
        assert budget <= spent and votes in (2, 3, 4, 5)
        assert budget > spent * (votes - 2) / votes
        assert {o.calls for o in evaluation.outcomes["votes", name]} == {votes}
    # The first vote is the single agent's answer: it is not asked for twice.
    assert len(executor.asked) == sum(2 * len(TASKS[name]) * evaluation.votes["votes"][name] for name in TASKS)


def test_self_consistency_of_a_good_agent_beats_it(measure: Measure) -> None:
    single, vote = fixed("single", Actor(adds(0.7))), fixed("vote", Actor(adds(0.7)), VOTE)
    evaluation = measure(single, vote, replace(single, name="votes", token_budget_of="vote"), samples=4)
    rows = {row.method: row for row in evaluation.overall.rows}
    assert rows["votes"].average > rows["single"].average


def test_a_stopped_evaluation_resumes_with_the_same_results(measure: Measure, tmp_path: Path) -> None:
    def methods(designer: Actor, executor: Actor) -> list[Method]:
        both = samplers(designer, executor)
        return standard_methods(both, None, {"single": SINGLE, "vote": VOTE})

    whole = measure(*methods(Actor(designs), Actor(adds(0.5))), directory="whole", samples=2)

    class Stop(Exception):
        pass

    def stops_at(limit: int) -> Actor:
        async def before(count: int) -> None:
            if count > limit:
                raise Stop

        return Actor(adds(0.5), before)

    asked = 0
    for limit in (7, 30, 90):
        with pytest.raises(Stop):
            measure(*methods(Actor(designs), stops_at(limit)), samples=2, at_once=4)
        asked += limit
        for file in (tmp_path / "evaluation" / "outcomes").glob("*.jsonl"):
            with file.open("a") as cut_off:
                cut_off.write('{"task": "test/0", "sam')
    last = Actor(adds(0.5))
    resumed = measure(*methods(Actor(designs), last), samples=2)
    assert timeless(resumed) == timeless(whole) and resumed.votes == whole.votes
    assert len(last.asked) < sum(outcome.calls for own in whole.outcomes.values() for outcome in own) - 60
    again = Actor("never asked")
    assert measure(*methods(again, again), samples=2).to_json() == resumed.to_json()
    assert again.asked == []


class Thoughtless(Actor):
    template_arguments: ClassVar = {"enable_thinking": False}


OTHERS: dict[str, Callable[[Measure, Actor], object]] = {
    "another samples": lambda measure, actor: measure(fixed("single", actor), samples=2),
    "another seed": lambda measure, actor: measure(fixed("single", actor), seed=1),
    "another script": lambda measure, actor: measure(fixed("single", actor, VOTE)),
    "another weights": lambda measure, actor: measure(replace(fixed("single", actor), weights_digest="step 2")),
    "another held_out_seeds": lambda measure, actor: measure(
        fixed("single", actor), held_out={name: range(len(tasks)) for name, tasks in TASKS.items()}
    ),
    "another tasks": lambda measure, actor: measure(fixed("single", actor), sets={"small": TASKS["small"][:2]}),
    "another executor.chat_template": lambda measure, actor: measure(fixed("single", Thoughtless("never asked"))),
    "another executor.temperature": lambda measure, actor: measure(
        replace(fixed("single", actor), executor=replace(fixed("single", actor).executor, temperature=0.0))
    ),
}


@pytest.mark.parametrize("complaint", OTHERS)
def test_other_settings_are_refused_in_one_line(measure: Measure, complaint: str) -> None:
    actor = Actor(adds(1.0))
    measure(fixed("single", actor))
    asked = len(actor.asked)
    with pytest.raises(MetaAgentXError, match=f"has results with {complaint}: choose another directory") as refused:
        OTHERS[complaint](measure, actor)
    assert "\n" not in str(refused.value) and len(actor.asked) == asked
    measure(fixed("single", actor), fixed("vote", actor, VOTE))  # a further method is welcome
    assert len(actor.asked) == 4 * asked


def test_outcomes_of_versions_whose_answers_were_text_are_read(measure: Measure, tmp_path: Path) -> None:
    actor = Actor(adds(1.0))
    found = measure(fixed("single", actor))
    asked = len(actor.asked)
    for file in (tmp_path / "evaluation" / "outcomes").glob("*.jsonl"):
        header, *lines = map(json.loads, file.read_text().splitlines())
        rows = [{**line, "answer": line["answer"]["text"]} for line in lines]
        file.write_text("".join(json.dumps(row) + "\n" for row in [header, *rows]))
    again = measure(fixed("single", actor))
    assert len(actor.asked) == asked
    kinds = [outcome.answer and outcome.answer.kind for own in again.outcomes.values() for outcome in own]
    assert set(kinds) == {"boxed"} and again.outcomes.keys() == found.outcomes.keys()


@pytest.mark.parametrize(
    "damage",
    [
        {"task": 7},
        {"sample": "0"},
        {"sample": True},
        {"vote": -1},
        {"solved": 1},
        {"solved": "yes"},
        {"tokens": 1.5},
        {"seconds": float("nan")},
        {"seconds": None},
        {"fault": ["infra"]},
        {"more": 0},
    ],
    ids=str,
)
def test_a_damaged_outcome_is_named_with_its_line(damage: dict[str, object], measure: Measure, tmp_path: Path) -> None:
    measure(fixed("single", Actor(adds(1.0))))
    file = min((tmp_path / "evaluation" / "outcomes").glob("*.jsonl"))
    header, first, *others = file.read_text().splitlines()
    file.write_text("\n".join([header, first, json.dumps(json.loads(others[0]) | damage), *others[1:], ""]))
    before = file.read_bytes()
    with pytest.raises(MetaAgentXError, match=r"line 3: invalid outcome .*: remove the line") as refused:
        measure(fixed("single", Actor(adds(1.0))))
    assert "\n" not in str(refused.value) and file.read_bytes() == before


def test_infrastructure_faults_are_left_out_and_tried_again_later(measure: Measure) -> None:
    away = True

    def reply(conversation: list[dict[str, str]], seed: int) -> str:
        if away and "What is 2 " in conversation[1]["content"]:
            raise BackendError("the server is away")
        return adds(1.0)(conversation, seed)

    actor = Actor(reply)
    row = measure(fixed("single", actor)).sets["small"].rows[0]
    assert (row.average, row.tasks, row.infra) == (1.0, 3, 1)
    away, asked = False, len(actor.asked)
    row = measure(fixed("single", actor)).sets["small"].rows[0]
    assert (row.average, row.tasks, row.infra, len(actor.asked)) == (1.0, 4, 0, asked + 1)


def test_infrastructure_that_always_fails_stops_the_evaluation(measure: Measure) -> None:
    async def away(count: int) -> None:
        raise BackendError("the server is away")

    with pytest.raises(
        MetaAgentXError,
        match=r"single on small: every sample failed .*; first: .*the server is away",
    ):
        measure(fixed("single", Actor("", away)))


def test_bad_questions_are_one_line(measure: Measure) -> None:
    actor = Actor(adds(1.0))
    single = fixed("single", actor)
    for methods, options, complaint in (
        ([], {}, "needs methods with different names, got: none"),
        ([single, single], {}, "got: single, single"),
        ([single], {"baseline": "ours"}, "ours is not among the methods: single"),
        ([single], {"samples": 0}, "at least one sample"),
        ([single], {"sets": {}}, "needs tasks"),
        ([single], {"sets": {"small": []}}, "small has no tasks"),
        ([single], {"sets": {"small": [task(1), task(1)]}}, "two tasks with the same id"),
        ([fixed("votes", actor, token_budget_of="ours")], {}, "votes has the budget of ours: measure that as well"),
        ([fixed("broken", actor, "import socket")], {}, "the script of broken cannot run: "),
    ):
        with pytest.raises(MetaAgentXError, match=complaint):
            measure(*methods, **options)
    assert actor.asked == []
    with pytest.raises(ValueError, match="either a designer or a script"):
        replace(single, script=None)


def test_results_for_programs_and_for_people(measure: Measure, tmp_path: Path) -> None:
    new, old = Actor(adds(1.0)), Actor(adds(0.3))
    scripts = {"single": SINGLE, "vote": VOTE}
    evaluation = measure(
        *standard_methods(samplers(Actor(designs), new), samplers(Actor(designs), old), scripts), samples=2
    )
    data = json.loads((tmp_path / "evaluation" / "evaluation.json").read_text())
    assert data == json.loads(json.dumps(evaluation.to_json()))
    assert (data["format"], data["samples"], data["against"], list(data["sets"])) == (1, 2, "metaagentx", [*TASKS])
    assert data["methods"] == [
        "metaagentx", "new designs old executor", "old designs new executor", "cold start",
        "single agent", "fixed: vote", "self-consistency", "old single agent",
    ]  # fmt: skip
    rows = {row["method"]: row for row in data["overall"]["rows"]}
    grid = data["overall"]["grid"]
    assert grid["new designs"]["new executor"]["average"] == rows["metaagentx"]["average"] == 1.0
    assert grid["old designs"]["old executor"]["average"] == rows["cold start"]["average"] < 0.9
    assert rows["metaagentx"]["passes"] == {"1": 1.0, "2": 1.0}
    assert set(data["sets"]["small"]["rows"][0]["patterns"]) == {"single", "ensemble"}
    pairs = {pair["method"]: pair for pair in data["overall"]["paired"]}
    assert pairs["cold start"]["difference"] == pytest.approx(rows["cold start"]["average"] - 1)
    assert "metaagentx" not in pairs and pairs["single agent"]["ties"] == 10
    page = (tmp_path / "evaluation" / "evaluation.md").read_text()
    assert page == evaluation.to_markdown()
    assert "| method | solved % (avg@2) | pass@2 % | tokens | calls | seconds | faults % | left out |" in page
    assert "| metaagentx | 100.0 (100.0 to 100.0) | 100.0 |" in page
    assert f"| self-consistency, {evaluation.votes['self-consistency']['small']} votes | 100.0" in page
    assert "| single agent | +0.0 (+0.0 to +0.0) | 0 | 0 | 10 |" in page
    assert "|  | old executor | new executor |" in page and "| old designs | " in page
    assert "## Designs by set" in page and page.count("| set | ") == 1  # both Designers are the same one
    for table in page.split("\n\n"):
        assert len({line.count(" | ") for line in table.splitlines() if line.startswith("| ")}) <= 1, table


def test_a_difference_of_nothing_has_no_minus() -> None:
    pair = Comparison("a", "b", tasks=9, difference=-1e-17, low=-0.0004, high=-0.0, wins=1, losses=1, ties=7)
    assert comparison_cells(pair) == ["a", "+0.0 (+0.0 to +0.0)", "1", "1", "7"]


def test_the_page_names_every_field(measure: Measure) -> None:
    page = (Path(__file__).parents[2] / "docs" / "evaluation.md").read_text()
    data: Any = measure(fixed("single", Actor(adds(1.0))), fixed("vote", Actor(adds(1.0)), VOTE)).to_json()
    summary = data["overall"]
    names = {*data, *summary, *summary["rows"][0], *summary["paired"][0], *(field.name for field in fields(Outcome))}
    assert [name for name in sorted(names) if f"`{name}`" not in page] == []
    assert [name for name in standard_names(True, ["single", "vote"]) if name not in page] == []
    assert set(PAPER_SETS) <= set(SOURCES)


RECIPE = """steps = 1
stages = [{ steps = 1, executor = 1e-3 }]
[model]
path = "preset:nano"
compiled = false
[tasks]
train = "gym:gcd + gym:chain_sum?min_terms=2&max_terms=2"
held_out = 4
per_step = 1
[rollout]
designs = 2
executions = 1
designer_tokens = 6
executor_tokens = 6
calls = 4
"""


@pytest.fixture(scope="module")
def nano(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with one step done, by an untrained model."""
    from metaagentx.backends.local.build import build_policies
    from metaagentx.config import load_config

    directory = tmp_path_factory.mktemp("runs")
    (directory / "recipe.toml").write_text(RECIPE)
    config = load_config(directory / "recipe.toml")
    with Run.create(directory / "nano", RECIPE) as run:
        policies = {
            str(role): policy
            for role, policy in build_policies(config.model, run.directory, config.seed).policies.items()
        }
        run.write_step(0, {}, None)
        asyncio.run(run.save_checkpoint(1, policies, keep=1))
    return directory / "nano"


def test_a_run_is_evaluated_from_the_command_line(nano: Path, tmp_path: Path) -> None:
    import typer
    from typer.testing import CliRunner

    from metaagentx.cli.eval import evaluate_command

    app = typer.Typer()
    app.command()(evaluate_command)
    vote = tmp_path / "three.py"
    vote.write_text(HEAD + 'workflow.add_node(AgentNode("Solver", "Solve."))' + RUN)
    words = [str(nano), "--samples", "2", "--out", str(tmp_path / "out"), "--script", str(vote)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    data = json.loads((tmp_path / "out" / "evaluation.json").read_text())
    assert list(data["sets"]) == ["gym:gcd", "gym:chain_sum"]
    assert {"metaagentx", "cold start", "fixed: tool", "fixed: three", "self-consistency"} <= set(data["methods"])
    rows = {row["method"]: row for row in data["overall"]["rows"]}
    assert rows["metaagentx"]["fault_kinds"] == {"no_script": 8} and rows["metaagentx"]["infra"] == 0
    # One step of nothing: before and after are the same weights, and have the same seeds.
    assert all(pair["ties"] == 4 for pair in data["overall"]["paired"] if pair["method"] == "cold start")
    assert rows["cold start"]["tokens"] == rows["metaagentx"]["tokens"] == 6
    assert "gym:chain_sum" in done.stdout and "evaluation.json" in done.stdout
    chosen = [str(nano), "--limit", "1", "--methods", "single-agent", "--script", str(vote)]
    assert CliRunner().invoke(app, [*chosen, "--out", str(tmp_path / "few")]).exit_code == 0
    data = json.loads((tmp_path / "few" / "evaluation.json").read_text())
    assert data["methods"] == ["single agent", "fixed: three"], "a script that is named is measured"
    assert (data["checkpoint"], data["split"]) == (1, "held-out")
    again = CliRunner().invoke(app, [*words[:3], *words[3:], "--tasks", "gym:gcd", "--split", "test", "--limit", "2"])
    assert isinstance(again.exception, MetaAgentXError)
    assert "has results with another tasks" in str(again.exception)


def paper_data(folder: Path) -> None:
    """Made-up rows with the fields of the paper's sets, where a user puts the published ones."""
    hidden = {"input": ["0\n", "9\n"], "output": ["1\n", "19\n"]}
    cases = json.dumps([{"input": "9\n", "output": "19\n", "testtype": "stdin"}])
    for name in PAPER_SETS:
        rows = [made_up(name, number) for number in range(503 if name == "apps" else 3)]
        if name == "apps":
            del rows[7]["input_output"]
        if name == "codecontests":
            rows = [{**row, "private_tests": hidden} for row in rows] + [{**rows[0], "name": "x", "public_tests": None,
                                                                          "private_tests": hidden}]  # fmt: skip
        if name == "livecodebench":
            rows = [{**row, "private_test_cases": cases} for row in rows]
            write(folder / name / "test5.jsonl", [made_up(name, 77)])
        write(folder / name / ("test6.jsonl" if name == "livecodebench" else "test.jsonl"), rows)


def test_the_papers_sets_are_the_published_rows(nano: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from metaagentx.config import load_config

    monkeypatch.chdir(tmp_path)
    paper_data(tmp_path / "data")
    config = load_config(nano.parent / "recipe.toml")
    request = RunRequest(run=nano, tasks=("paper",))
    all_tests, positions = task_sets(config, request)
    public, _ = task_sets(config, replace(request, public_tests=True))
    assert positions is None and list(all_tests) == list(public) == list(PAPER_SETS)
    counts = {"livecodebench": 3, "apps": 499, "codecontests": 4, "aime24": 3, "aime25": 3, "olympiadbench": 3}
    assert {name: len(tasks) for name, tasks in all_tests.items()} == counts, "the first 500 rows, one of them bad"
    assert {name: len(tasks) for name, tasks in public.items()} == {**counts, "codecontests": 3}

    def tests_of(sets: Any, name: str) -> set[int]:
        return {len(task.grading.tests) for task in sets[name] if isinstance(task.grading, CodeTests)}

    assert [tests_of(all_tests, name) for name in ("livecodebench", "codecontests", "apps")] == [{2}, {2, 3}, {1}]
    assert [tests_of(public, name) for name in ("livecodebench", "codecontests", "apps")] == [{1}, {1}, {1}]


def test_published_figures_stand_beside_ours(nano: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from typer.testing import CliRunner

    from metaagentx.cli.main import app

    monkeypatch.chdir(tmp_path)
    paper_data(tmp_path / "data")
    words = ["eval", str(nano), "--tasks", "paper", "--limit", "1", "--methods", "metaagentx"]
    done = CliRunner().invoke(app, [*words, "--public-tests", "--out", "public"])
    assert done.exit_code == 0, done.output
    page = Path("public/evaluation.md").read_text()
    heading, table = page.split("## Beside the paper")[1].strip().split("\n\n")[:2]
    assert "Qwen3-8B, not measured here" in heading and "this evaluation, by public tests" in heading
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    assert lines[0] == ["", *PAPER_SETS, "mean"]
    cells = {line[0]: line[1:] for line in lines[2:]}
    assert cells["MetaAgent-X (published)"] == ["41.00", "38.00", "17.00", "40.00", "33.33", "61.00", "38.33"]
    assert cells["AFlow (published)"] == ["-"] * 6 + ["24.10"]
    assert cells["metaagentx (measured here)"] == ["0.00"] * 7 and cells["tasks"] == ["1"] * 6 + ["6"]
    for name in ("single agent", "MetaAgent-X"):
        *figures, mean = PUBLISHED[name]
        assert len(figures) == 6 and fmean(figures) == pytest.approx(mean, abs=0.06)
    assert Evaluation.read(Path("public/evaluation.json")).paper == "public tests"
    other = CliRunner().invoke(app, [*words, "--out", "public"])
    assert "has results with another tasks" in str(other.exception), "other tests are another measurement"


def test_a_model_that_cannot_be_trained_is_evaluated(nano: Path, tmp_path: Path) -> None:
    """As the model to compare with, which is only sampled."""
    from tests.backends.learners import write_untrainable

    other = write_untrainable(tmp_path / "cohere")
    request = RunRequest(run=nano, initial_model=other, methods=("cold start",), limit=1, out=tmp_path / "out")
    asyncio.run(evaluate_run(request))
    (row,) = json.loads((tmp_path / "out" / "evaluation.json").read_text())["overall"]["rows"]
    assert (row["method"], row["infra"], row["fault_kinds"]) == ("cold start", 0, {"no_script": 2})


BAD: dict[str, dict[str, Any]] = {
    "does not exist": {"run": Path("nowhere")},
    "no checkpoint of step 7; steps with one: 1": {"checkpoint": "7"},
    "unknown checkpoint 'worst': write best, last, or a step: 1": {"checkpoint": "worst"},
    "unknown method 'metagentx'; did you mean 'metaagentx'": {"methods": ("metagentx",)},
    "no model at nowhere": {"initial_model": Path("nowhere")},
    "gym:gcd is endless: say how many of its tasks to use": {"tasks": ("gym:gcd",)},
    "no source 'aime2'": {"tasks": ("aime2",)},
    "aime24 has no split 'train'": {"tasks": ("aime24",), "split": "train"},
    "--public-tests is for the paper's benchmarks": {"tasks": ("aime24",), "public_tests": True},
    "nowhere.py cannot be read as a script": {"scripts": (Path("nowhere.py"),)},
    "broken.py cannot run: line 1": {"scripts": (Path("broken.py"),), "methods": ("metaagentx",)},
    "tool.py: there is already a design 'tool': rename": {"scripts": (Path("tool.py"),)},
    "TWO_.py: there is already a design 'two': rename": {"scripts": (Path("two.py"), Path("TWO_.py"))},
    "self-consistency has the budget of metaagentx": {"methods": ("self-consistency",)},
}


@pytest.mark.parametrize("complaint", BAD)
def test_a_bad_request_is_one_line(nano: Path, tmp_path: Path, complaint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("broken.py").write_text("from workflow import")
    for name in ("tool.py", "two.py", "TWO_.py"):
        Path(name).write_text(HEAD + 'workflow.add_node(AgentNode("Solver", "Solve."))' + RUN)
    request = replace(RunRequest(run=nano, out=tmp_path / "out"), **BAD[complaint])
    with pytest.raises(MetaAgentXError) as refused:
        asyncio.run(evaluate_run(request))
    assert complaint in str(refused.value) and "\n" not in str(refused.value)


def test_weights_are_known_by_what_they_hold_and_not_by_where_they_are(tmp_path: Path) -> None:
    marks = []
    for location, content in (("one/run", b"a" * 3_000_000), ("other/run", b"a" * 3_000_000), ("third/run", b"a" * 10)):
        (tmp_path / location / "executor").mkdir(parents=True)
        (tmp_path / location / "executor" / "model.safetensors").write_bytes(content)
        marks.append(weights_digest(tmp_path / location))
    assert marks[0] == marks[1] != marks[2]
    weights = tmp_path / "one/run/executor/model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"b")
    assert weights_digest(tmp_path / "one/run") != marks[1]
    (tmp_path / "other/run/not.bin").mkdir()  # a directory, and a link that leads nowhere
    (tmp_path / "other/run/nowhere.safetensors").symlink_to(tmp_path / "nowhere")
    assert weights_digest(tmp_path / "other/run") == marks[1]
