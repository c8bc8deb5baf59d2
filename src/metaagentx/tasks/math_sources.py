"""Math sources: GSM8K, MATH, AIME, OlympiadBench, Polaris. A gold answer is LaTeX without dollar signs."""

import re

from ..types import MathGold
from ..workflow.protocol import last_boxed
from .fields import answer_text, flag, items, number, optional_id, optional_text, text
from .rows import Row, RowError
from .source import Draft, Hub, Source, hub_splits, split_field


def gsm8k(row: Row) -> Draft:
    """Parse the answer after `####`, with commas in thousands."""
    answer = text(row, "answer")
    match = re.search(r"####\s*(-?[\d,]*\.?\d+)\s*$", answer)
    if match is None:
        raise RowError("answer does not end in #### and a number")
    return Draft(text(row, "question"), MathGold((match[1].replace(",", ""),)))


def math(row: Row) -> Draft:
    """Parse the answer, a field of its own (MATH-500), else the last box of the solution."""
    if row.get("answer") is not None:
        answer = answer_text(row, "answer")
    elif (box := final_box(text(row, "solution"))) is not None:
        answer = box
    else:
        raise RowError("solution has no \\boxed{...}")
    level = re.fullmatch(r"(?:Level )?([1-5])", str(row.get("level")))
    difficulty = (int(level[1]) - 1) / 4 if level else None
    own_id = re.sub(r"^(?:train|test)/|\.json$", "", optional_text(row, "unique_id"))
    return Draft(text(row, "problem"), gold(answer), id=own_id, difficulty=difficulty)


def math_split(row: Row) -> str:
    """Return the split by `unique_id` (`test/algebra/1.json`), which MATH-500 has, else by the field `split`."""
    unique_id = row.get("unique_id")
    if isinstance(unique_id, str) and (match := re.match(r"(train|test)/", unique_id)):
        return match[1]
    return split_field(row)


def aime(row: Row) -> Draft:
    """Parse an integer from 0 to 999: 2024 writes 025, and one answer of 2025 is 336^\\circ."""
    answer = answer_text(row, "answer", "Answer")
    match = re.fullmatch(r"\$?\s*0*(\d{1,3})\s*(?:\^\\circ|\^\{\\circ\}|°)?\s*\$?", answer.strip())
    if match is None:
        raise RowError(f"answer {answer[:40]!r} is not an integer from 0 to 999")
    return Draft(
        text(row, "problem", "Problem", "question"),
        MathGold((match[1],)),
        id=optional_id(row.get("id", row.get("ID"))),
    )


def olympiadbench(row: Row) -> Draft:
    """Parse final_answer, a list of one text with several answers if the row says so; `error` is a tolerance."""
    finals = items(row, "final_answer")
    if len(finals) != 1 or not isinstance(finals[0], str):
        raise RowError("final_answer is not a list of one text")
    several = flag(row, "is_multiple_answer") or False
    plain = strip_dollars(finals[0])
    answers = split_answers(plain) if several else (plain,)
    if not all(answers):
        raise RowError("final_answer has an empty answer")
    stated = optional_text(row, "error")
    tolerances = tuple(number(part.strip(), "error") for part in stated.split(",")) if stated.strip() else ()
    if len(tolerances) not in (0, 1, len(answers)):
        raise RowError(f"error has {len(tolerances)} tolerances for {len(answers)} answers")
    unit = strip_dollars(optional_text(row, "unit"))
    form = ["Give all answers, separated by commas."] if len(answers) > 1 else []
    form += [f"Give the answer in the unit ${unit}$."] if unit else []
    context = optional_text(row, "context")
    question = text(row, "question")
    return Draft(
        f"{context}\n\n{question}" if context.strip() else question,
        MathGold(answers, tolerances, unit),
        form=" ".join(form),
        id=optional_id(row.get("id")),
    )


def polaris(row: Row) -> Draft:
    """Parse difficulty `k/8`: how often a 7B model was right in eight tries; the more, the easier."""
    stated = optional_text(row, "difficulty")
    match = re.fullmatch(r"([0-8])/8", stated.strip())
    if stated and match is None:
        raise RowError(f"difficulty {stated[:20]!r} is not k/8")
    difficulty = 1 - int(match[1]) / 8 if match else None
    return Draft(text(row, "problem"), gold(answer_text(row, "answer")), difficulty=difficulty)


def gold(answer: str) -> MathGold:
    """Return one answer, or raise RowError if it is empty."""
    plain = strip_dollars(answer)
    if not plain:
        raise RowError("answer is empty")
    return MathGold((plain,))


def strip_dollars(answer: str) -> str:
    """Remove dollar signs, outer and inner (`$3$, $4$`), and the period of a sentence."""
    return re.sub(r"(?<!\\)\$", "", answer).strip().removesuffix(".").strip()


def split_answers(answer: str) -> tuple[str, ...]:
    """Split at commas outside brackets: `1,(2,3)` is two answers. `\\,` is a space and `\\{` is a bracket."""
    parts, depth, start, position = [], 0, 0, 0
    while position < len(answer):
        token = answer[position : position + 2] if answer[position] == "\\" else answer[position]
        if token in ("(", "[", "{", "\\{"):
            depth += 1
        elif token in (")", "]", "}", "\\}"):
            depth = max(0, depth - 1)
        elif token == "," and depth == 0:
            parts.append(answer[start:position])
            start = position + 1
        position += len(token)
    return tuple(part.strip() for part in (*parts, answer[start:]))


def final_box(solution: str) -> str | None:
    r"""Return the content of the last `\boxed` or `\fbox`, or the 5 of `\boxed 5`; None if it is empty or unclosed."""
    start = max(solution.rfind(r"\boxed"), solution.rfind(r"\fbox"))
    if start < 0:
        return None
    rest = re.sub(r"^\\(?:boxed|fbox)\s*", "", solution[start:])
    if rest.startswith("{"):
        return last_boxed(rf"\boxed{rest}")
    bare = re.match(r"[^\s$]+", rest)
    return bare[0] if bare else None


MATH_SOURCES = (
    Source(
        "gsm8k",
        "math",
        gsm8k,
        hub_splits("openai/gsm8k", "main", "train", "test"),
        ("question", "answer"),
        license="MIT",
    ),
    Source(
        "math",
        "math",
        math,
        hub_splits("DigitalLearningGmbH/MATH-lighteval", "", "train", "test"),
        ("problem", "solution"),
        license="MIT as stated; the original hub copy was withdrawn after a DMCA notice",
        optional_fields=("answer", "level", "type", "unique_id", "split"),
        row_split=math_split,
    ),
    Source(
        "math500",
        "math",
        math,
        hub_splits("HuggingFaceH4/MATH-500", "", "test"),
        ("problem", "answer"),
        license="MIT; 500 of MATH's test split",
        optional_fields=("solution", "level", "subject", "unique_id"),
    ),
    Source(
        "aime24",
        "math",
        aime,
        {"test": (Hub("HuggingFaceH4/aime_2024", split="train"),)},
        ("problem", "answer"),
        license="problems of the MAA; the data set states none",
        optional_fields=("id", "ID", "Problem", "Answer", "question"),
    ),
    Source(
        "aime25",
        "math",
        aime,
        {"test": tuple(Hub("opencompass/AIME2025", f"AIME2025-{part}", "test") for part in ("I", "II"))},
        ("question", "answer"),
        license="MIT; problems of the MAA",
        optional_fields=("id", "problem"),
    ),
    Source(
        "olympiadbench",
        "math",
        olympiadbench,
        {"test": (Hub("Hothan/OlympiadBench", "OE_TO_maths_en_COMP", "train"),)},
        ("question", "final_answer"),
        license="Apache-2.0",
        optional_fields=("id", "context", "is_multiple_answer", "unit", "error"),
    ),
    Source(
        "polaris",
        "math",
        polaris,
        hub_splits("POLARIS-Project/Polaris-Dataset-53K", "", "train"),
        ("problem", "answer"),
        license="Apache-2.0; filtered from DeepScaleR and AReaL-boba",
        optional_fields=("difficulty",),
    ),
)
