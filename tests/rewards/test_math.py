r"""Math answers: published examples as labelled, equal values accepted, near misses and hedges refused."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.grading_errors import grade_pairs
from benchmarks.math_held_out import held_out
from benchmarks.math_near_misses import KNOWN, near_misses
from benchmarks.math_perturbations import Pair, aime, by_hand, generated, gsm8k
from benchmarks.regression_math import math_golds
from metaagentx.rewards import mathematics
from metaagentx.rewards.graders import Graders
from metaagentx.types import FinalAnswer, Grade, MathGold

DATA = Path(__file__).parent.parent / "data"


@pytest.fixture(scope="module")
def pool(runner: asyncio.Runner) -> Iterator[Graders]:
    pool = Graders(workers=2)
    yield pool
    runner.run(pool.__aexit__())


def grade(runner: asyncio.Runner, pool: Graders, text: str, *golds: str, **stated: Any) -> Grade:
    return runner.run(pool.grade_math(FinalAnswer.parse(text), MathGold(golds, **stated)))


def rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / name).read_text().splitlines()]


def misjudged(runner: asyncio.Runner, pool: Graders, pairs: list[Pair]) -> list[Pair]:
    accepted = runner.run(grade_pairs(pool, pairs))
    return [pair for pair, verdict in zip(pairs, accepted, strict=True) if verdict is not pair.accept]


def tolerances(precision: object) -> tuple[float, ...]:
    if precision is None:
        return ()
    return tuple(map(float, precision)) if isinstance(precision, list) else (float(str(precision)),)


def test_olympiadbench_examples_are_judged_as_labelled(runner: asyncio.Runner, pool: Graders) -> None:
    wrong = []
    for row in rows("olympiadbench_scoring_examples_24.jsonl"):
        for example in row["Ans"]:
            answer = example["answer"] if "boxed" in example["answer"] else rf"\boxed{{{example['answer']}}}"
            stated = tolerances(example.get("precision"))
            if grade(runner, pool, answer, row["GT"], tolerances=stated).solved is not example["equal"]:
                wrong.append((row["GT"], example))
    assert not wrong


def test_gsm8k_golds_match_themselves(runner: asyncio.Runner, pool: Graders) -> None:
    pairs = [pair for pair in gsm8k() if pair.answer == pair.gold]
    assert len(pairs) == 300 and not misjudged(runner, pool, pairs)


def test_gsm8k_near_misses(runner: asyncio.Runner, pool: Graders) -> None:
    assert not misjudged(runner, pool, list(gsm8k())[::7])


def test_math_golds_match_themselves(runner: asyncio.Runner, pool: Graders) -> None:
    file = DATA / "reference_only" / "math_train_like_300.jsonl"
    if not file.exists():
        pytest.skip("the MATH rows are not part of the project")
    golds = [json.loads(line)["answer"] for line in file.read_text().splitlines()]
    assert not misjudged(runner, pool, [Pair("math", gold, gold, True) for gold in golds])


def test_perturbations_by_hand(runner: asyncio.Runner, pool: Graders) -> None:
    assert not misjudged(runner, pool, list(by_hand()))


def test_generated_perturbations(runner: asyncio.Runner, pool: Graders) -> None:
    assert not misjudged(runner, pool, list(generated(20)))


def test_held_out_pairs_are_never_paid_wrongly(runner: asyncio.Runner, pool: Graders) -> None:
    pairs = list(held_out())
    wrong = misjudged(runner, pool, pairs)
    assert not [pair for pair in wrong if not pair.accept]
    assert len(wrong) <= 0.03 * sum(pair.accept for pair in pairs)


def test_near_misses_are_refused(runner: asyncio.Runner, pool: Graders) -> None:
    assert {(pair.gold, pair.answer) for pair in misjudged(runner, pool, list(near_misses()))} == KNOWN


def test_defect_14_an_aime_answer_off_by_one_is_wrong(runner: asyncio.Runner, pool: Graders) -> None:
    assert not misjudged(runner, pool, list(aime(150)))


def test_no_tolerance_that_the_task_does_not_state(runner: asyncio.Runner, pool: Graders) -> None:
    assert not grade(runner, pool, r"\boxed{0.333333333}", r"\frac{1}{3}").solved
    assert not grade(runner, pool, r"\boxed{1.41421356237309}", r"\sqrt{2}").solved
    assert not grade(runner, pool, r"\boxed{1000000.0000001}", "1000000").solved


def test_stated_tolerances(runner: asyncio.Runner, pool: Graders) -> None:
    assert grade(runner, pool, r"\boxed{3.15}", "3.14", tolerances=(0.01,)).solved
    assert not grade(runner, pool, r"\boxed{3.16}", "3.14", tolerances=(0.01,)).solved
    assert grade(runner, pool, r"\boxed{0.1, 100.5}", "100", "0.1", tolerances=(1.0, 0.01)).solved
    assert not grade(runner, pool, r"\boxed{0.5, 100}", "100", "0.1", tolerances=(1.0, 0.01)).solved
    assert not grade(runner, pool, r"\boxed{100}", "100", "0.1", tolerances=(1.0,)).solved


def test_several_answers_in_any_order(runner: asyncio.Runner, pool: Graders) -> None:
    assert grade(runner, pool, r"\boxed{5, \frac{1}{2}, -3}", "-3", "0.5", "5").solved
    assert grade(runner, pool, r"\boxed{\{5,-3\}}", "-3", "5").solved
    for wrong in ("5", "5,-3,-3", "5,3", "5,-3,0", "2"):
        assert not grade(runner, pool, rf"\boxed{{{wrong}}}", "-3", "5").solved


def test_a_unit_the_task_states_may_be_repeated(runner: asyncio.Runner, pool: Graders) -> None:
    for right in ("0.64", "0.64N", r"0.64\text{ N}", r"0.64~\mathrm{N}", r"\frac{16}{25} \text{ newtons}"):
        assert grade(runner, pool, rf"\boxed{{{right}}}", "0.64", unit="N").solved, right
    for wrong in ("0.65N", r"0.64\text{ kg}", "0.64M", r"0.64\text{ kN}", "64"):
        assert not grade(runner, pool, rf"\boxed{{{wrong}}}", "0.64", unit="N").solved, wrong
    assert grade(runner, pool, r"\boxed{5\text{ cm}^2}", "5", unit=r"$\mathrm{cm}^{2}$").solved
    assert not grade(runner, pool, r"\boxed{5\text{ cm}}", "5", unit=r"$\mathrm{cm}^{2}$").solved


def test_the_last_box_counts_and_one_is_required(runner: asyncio.Runner, pool: Graders) -> None:
    assert grade(runner, pool, r"\boxed{5}, no: \boxed{7}", "7").solved
    assert not grade(runner, pool, r"\boxed{7}, no: \boxed{5}", "7").solved
    assert grade(runner, pool, r"\boxed{5} \boxed{7} \boxed{5}", "5").solved
    for nothing in ("I do not know. 7", "7", r"\boxed{}", r"\boxed{7", r"<think>\boxed{7}</think>", "$7$", ""):
        verdict = grade(runner, pool, nothing, "7")
        assert not verdict.solved and "boxed" in verdict.reason


def test_hedges_are_not_answers(runner: asyncio.Runner, pool: Graders) -> None:
    hedges = (
        *("12, 13", "12 or 13", r"12\text{ or 13}", r"\text{12 or 13}", "12; 13", "12/13", "12 13", "12:13", "12|13"),
        *(r"12 \\ 13", r"12\newline 13", r"12 \to 13", r"12\pm 1", r"x\in\{12,13\}", "11<12<13", r"x\le 12", "12=13"),
        *("13=12", "1 2", "12...", r"12\ldots", r"12\text{ million}", r"\neg 12", "12!", "12+x", r"\overline{12}"),
        *("0x0c", "12e", r"\infty", r"12\text{ dozen}", "12 (or 13)", r"\cancel{13}12", r"\{12,12\}"),
    )
    paid = [hedge for hedge in hedges if grade(runner, pool, rf"\boxed{{{hedge}}}", "12").solved]
    assert not paid


@pytest.mark.parametrize(
    ("box", "reason"),
    [
        ("1" * 3000, "2000 characters"),
        ("(" * 20 + "1" + ")" * 20, "nested"),
        ("1" * 500, "400 digits"),
        (r"9^{9^{9^{9}}}", "tower"),
        (r"\sum_{k=1}^{100} k", "left to be worked out"),
    ],
)
def test_caps(runner: asyncio.Runner, pool: Graders, box: str, reason: str) -> None:
    assert reason in grade(runner, pool, rf"\boxed{{{box}}}", "5050").reason


def test_a_task_without_a_gold_is_an_error(runner: asyncio.Runner, pool: Graders) -> None:
    for golds in ((), ("",), ("5", " ")):
        with pytest.raises(ValueError, match="without a gold"):
            grade(runner, pool, r"\boxed{5}", *golds)


def test_a_megabyte_never_reaches_a_worker() -> None:
    assert mathematics.read_answer(FinalAnswer.parse(r"\boxed{" + "1" * 2_000_000 + "}")) == (
        "",
        "the answer is longer than 1000000 characters",
    )


def test_strange_text_is_only_wrong(runner: asyncio.Runner, pool: Graders) -> None:
    for strange in (
        "\ud800",
        "\x00",
        "��",
        "{",
        "\\",
        r"\begin{pmatrix}",
        r"\frac",
        "^",
        "_",
        "&",
        "a" * 1900,
        "\n" * 50,
    ):
        assert not grade(runner, pool, rf"\boxed{{{strange}}}", "12").solved


def test_equal_answers_get_equal_grades(runner: asyncio.Runner, pool: Graders) -> None:
    pairs = list(generated(8)) * 2
    accepted = runner.run(grade_pairs(pool, pairs))
    assert accepted[: len(pairs) // 2] == accepted[len(pairs) // 2 :]


@pytest.mark.parametrize(
    "gold",
    [r"\pm 1, \pm 7", "3:4:5", r"42^{\prime}", r"x\le 2 \text{ or } x\ge 3", r"(\pm 1,\pm 2)", r"\pm a \pm b \pm c",
     r"\text{The set of all } x", "3 1/2 cups, or so", r"k\pi, k\in\mathbb{Z}", "a=b=c", r"30^\circ 15'", "]0,1["],
)  # fmt: skip
def test_equal_text_always_matches(runner: asyncio.Runner, pool: Graders, gold: str) -> None:
    assert grade(runner, pool, rf"\boxed{{{gold}}}", gold).solved
    assert grade(runner, pool, rf"\boxed{{ {gold} }}", rf"${gold}$").solved


def test_an_answer_to_the_letter_needs_no_worker(runner: asyncio.Runner) -> None:
    pool = Graders(workers=2)
    gold = r"\frac{3}{4}"
    assert runner.run(pool.grade_math(FinalAnswer.parse(rf"\boxed{{{gold}}}"), MathGold((gold,)))) == Grade(
        1.0, True, ""
    )
    assert pool.worker_pids() == []
    runner.run(pool.__aexit__())


def test_an_answer_to_the_letter_is_what_the_worker_accepts() -> None:
    golds = [gold for _, golds in math_golds(DATA) for gold in golds]
    verbatim = [gold for gold in golds if mathematics.is_verbatim(gold, MathGold((gold,)))]
    assert len(verbatim) == len(golds) > 300
    assert [gold for gold in verbatim if mathematics.judge(gold, MathGold((gold,)))] == []
    for answer, gold in (
        ("5", MathGold(("5",), unit="cm")),
        (r"\text{}", MathGold((r"\text{}",))),
        ("5" + " " * 100, MathGold(("5",))),
        ("1 2", MathGold(("12",))),
        ("12", MathGold(("1 2",))),
        ("05", MathGold(("5",))),
        ("2, 1", MathGold(("1", "2"))),
    ):
        assert not mathematics.is_verbatim(answer, gold)


def test_spacing_around_the_gold_is_what_the_worker_accepts() -> None:
    golds = [MathGold((gold,)) for _, golds in math_golds(DATA) for gold in golds]
    golds += [MathGold(("1", "2")), MathGold((r"\frac{1}{2}", "x = 3", r"\$ 5"))]
    written = [
        (answer, gold)
        for gold in golds
        for whole in [", ".join(gold.answers)]
        for answer in (f" {whole} ", f"${whole}$", whole.replace(" ", "  "), whole.replace(" ", ""), " ".join(whole))
    ]
    accepted = [(answer, gold) for answer, gold in written if mathematics.is_verbatim(answer, gold)]
    assert len(accepted) > 0.7 * len(written)
    assert [answer for answer, gold in accepted if mathematics.judge(answer, gold)] == []


def test_signs_of_several_golds_keep_their_tolerances(runner: asyncio.Runner, pool: Graders) -> None:
    assert grade(runner, pool, r"\boxed{1.05, -1, 7.4, -7}", r"\pm 1", r"\pm 7", tolerances=(0.1, 0.5)).solved
    assert not grade(runner, pool, r"\boxed{1.4, -1, 7, -7}", r"\pm 1", r"\pm 7", tolerances=(0.1, 0.5)).solved
