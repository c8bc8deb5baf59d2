r"""Normalize LaTeX text and take it apart. Pure functions, standard library only.

`clean` removes what has no meaning (spacing, sizes, fonts, dollars). The other functions split a cleaned text into
its parts: lists, brackets, equation chains, units, matrices. Linear in the length of the text except for nesting,
which `depth` bounds beforehand.
"""

import re
from dataclasses import dataclass

_UNICODE = {
    "−": "-", "–": "-", "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "÷": "/", "°": r"^\circ", "π": r"\pi ",
    "∞": r"\infty ", "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "±": r"\pm ",
    "√": r"\sqrt", "≈": r"\approx ", "\u00a0": " ", "\u2009": " ", "\u202f": " ", "，": ",", "％": "%", "′": "'",
    "²": "^2", "³": "^3", "θ": r"\theta ", "α": r"\alpha ", "β": r"\beta ", "∅": r"\emptyset ",
}  # fmt: skip
_UNICODE_RE = re.compile("|".join(_UNICODE))
_SAME = {
    r"\dfrac": r"\frac", r"\tfrac": r"\frac", r"\cfrac": r"\frac", r"\leq": r"\le", r"\geq": r"\ge", r"\neq": r"\ne",
    r"\leqslant": r"\le", r"\geqslant": r"\ge", r"\lt": "<", r"\gt": ">", r"\lbrace": r"\{", r"\rbrace": r"\}",
    r"\lbrack": "[", r"\rbrack": "]", r"\degree": r"^\circ", r"\degrees": r"^\circ", r"\lvert": "|", r"\rvert": "|",
    r"\vert": "|", r"\dbinom": r"\binom", r"\tbinom": r"\binom", r"\varnothing": r"\emptyset", r"\ast": "*",
    r"\lor": "∨", r"\vee": "∨", r"\dots": r"\ldots", r"\simeq": r"\approx", r"\doteq": "=", r"\coloneqq": "=",
    r"\prime": "'", r"\colon": ":", r"\land": r"\wedge", r"\smallsetminus": r"\setminus", r"\backslash": r"\setminus",
}  # fmt: skip
_NOTHING = {
    r"\left", r"\right", r"\big", r"\Big", r"\bigg", r"\Bigg", r"\bigl", r"\bigr", r"\Bigl", r"\Bigr", r"\displaystyle",
    r"\textstyle", r"\limits", r"\nolimits", r"\quad", r"\qquad", r"\rm", r"\bf", r"\it", r"\mathstrut", r"\strut",
    r"\thinspace", r"\enspace", r"\negthinspace", r"\centering", r"\Biggl", r"\Biggr", r"\biggl", r"\biggr",
}  # fmt: skip
_COMMAND = re.compile(r"\\[a-zA-Z]+")
_SPACING = re.compile(r"(?<!\\)\\[,;:!> ]|~|\\hspace\*?\{[^{}]*\}|\\[vh]?phantom\{[^{}]*\}")
_ROW_SPACING = re.compile(r"\\\\\s*\[[^\[\]]{0,12}\]")
_MATH_MODE = re.compile(r"(?<!\\)\\[()\[\]]")
_FONT = re.compile(
    r"\\(?:mathbf|boldsymbol|bm|mathit|mathsf|mathcal|mathbb|mathfrak|bold|textstyle|emph|underline)\{([^{}]*)\}"
)
_TEXT = re.compile(r"\\(?:text|textbf|textit|textrm|textsf|mathrm|mbox|hbox|operatorname\*?)\s*\{([^{}]*)\}")
_CONNECTIVE = re.compile(r"(?<![a-zA-Z\\])(?:,\s*)?(and|or)(?![a-zA-Z])")
_SUBSCRIPT = re.compile(r"_\{\s*([A-Za-z0-9]+)\s*\}")
_THOUSANDS_SPACE = re.compile(r"(?<=\d)(?:\\,|\{,\}|\\ |\s*\\!\s*,\s*|\s*,\s*\\!\s*)(?=\d{3}(?!\d))")
_BODY = r"((?:[^\[\](){},;]|\([^()]*\)|\{(?:[^{}]|\{[^{}]*\})*\})+)"
_BRACKETED_PAIR = re.compile(rf"((?:^|\\cup|\\in|[,;=∨])\s*)([\[\]]){_BODY}([,;]){_BODY}([\[\]])")
_FRACTION = re.compile(r"\\frac\s*(\{|[0-9a-zA-Z])\s*")
_ARGUMENT = re.compile(r"\s*([0-9a-zA-Z])")
_SQRT = re.compile(r"\\sqrt\s*(\d|[a-zA-Z])(?![a-zA-Z])")
_NUMBER_SETS = re.compile(r"\\mathbb\s*\{?\s*([RZNQC])\s*\}?")
SEPARATORS = frozenset({",", ";", "∨", "∧"})
"""What separates the items of a list. `∨` stands for "or", `∧` for "and": they also join inequalities."""


def clean(text: str) -> str:
    """Return a text in one normal form: without sizes, fonts, dollars and spacing.

    Braces `\\{` become `⦃`, `⦄`; the words or and and become `∨`, `∧`; `]0,1[` becomes `(0,1)`.
    """
    text = _UNICODE_RE.sub(lambda match: _UNICODE[match[0]], text)
    text = text.replace(r"\$", "").replace("$", "").replace("\\\n", "\n")
    text = _MATH_MODE.sub(" ", _ROW_SPACING.sub(r"\\\\ ", text))
    text = _THOUSANDS_SPACE.sub(",", text)
    text = _SPACING.sub(" ", text).replace(r"\%", "%").replace("%", r"\%")
    text = _NUMBER_SETS.sub(r"\\\1set ", text)
    text = _FONT.sub(r"\1", _FONT.sub(r"\1", text))
    text = _COMMAND.sub(lambda match: "" if match[0] in _NOTHING else _SAME.get(match[0], match[0]), text)
    text = text.replace(r"\{", "⦃").replace(r"\}", "⦄").replace(r"\langle", "⟨").replace(r"\rangle", "⟩")
    text = _unbox(text)
    text = _TEXT.sub(_plain_words, text)
    text = re.sub(r"\^\s*\{\s*\\circ\s*\}|\^\s*\\circ", r"^\\circ", text)
    text = re.sub(r"\^\s*(?:\{\s*('[\s']*)\}|('+))", lambda match: (match[1] or match[2]).replace(" ", ""), text)
    text = _SQRT.sub(r"\\sqrt{\1}", text)
    text = _full_fractions(text)
    text = _SUBSCRIPT.sub(lambda match: f"_{match[1]}" if len(match[1]) == 1 else f"_{{{match[1]}}}", text)
    text = _BRACKETED_PAIR.sub(_round_brackets, re.sub(r"\s+", " ", text).strip())
    return _without_stop(text)


def _round_brackets(match: re.Match[str]) -> str:
    """Return an interval with outward brackets, `]0,1[`, written with round ones."""
    before, opening, low, comma, high, end = match.groups()
    return f"{before}{'[' if opening == '[' else '('}{low}{comma}{high}{']' if end == ']' else ')'}"


def _without_stop(text: str) -> str:
    text = text.removesuffix("\\\\").rstrip()
    if text[-1:] in (".", ",", ";", ":") and not text.endswith("..") and not text.endswith(r"\:"):
        text = text[:-1].rstrip()
    return text.removeprefix("+").strip()


def _plain_words(match: re.Match[str]) -> str:
    """Return the content of a text command: connectives as signs, single tokens and numbers without the command."""
    content = match[1].strip()
    if content.lower() in ("or", ", or"):
        return "∨"
    if content.lower() in ("and", ", and", "&"):
        return "∧"
    if content in (",", ";"):
        return ","
    before = match.string[: match.start()].rstrip()
    wrapped_number = re.fullmatch(r"\(?[-+]?[\d.,/ ]+\)?", content)
    if before.endswith(("_", "_{")) or not before or wrapped_number:
        return f"{content} "
    return f" \\text{{{content}}}" if content else " "


def _unbox(text: str) -> str:
    for command in (r"\boxed", r"\fbox", r"\mathord", r"\ensuremath"):
        while (start := text.find(command + "{")) >= 0:
            end = closing(text, start + len(command))
            if end < 0:
                return text
            text = text[:start] + text[start + len(command) + 1 : end] + text[end + 1 :]
    return text


def _full_fractions(text: str) -> str:
    r"""Return `\frac12` and `\frac1{72}` with all their braces."""
    position = 0
    while match := _FRACTION.search(text, position):
        start = match.start(1)
        if match[1] != "{":
            text = f"{text[:start]}{{{match[1]}}}{text[match.end() :]}"
        end = closing(text, start)
        if end < 0:
            return text
        after = _ARGUMENT.match(text, end + 1)
        if after:
            text = f"{text[: end + 1]}{{{after[1]}}}{text[after.end() :]}"
        position = match.start() + 5
    return text


def squeeze(text: str) -> str:
    """Remove braces around single characters, and white space except between digits: `1 2` is not `12`."""
    return re.sub(r"\{([^{}\\])\}", r"\1", re.sub(r"(?<!\d)\s+|\s+(?!\d)", "", text))


def closing(text: str, start: int) -> int:
    """Return where the brace that opens at `start` closes; -1 if it does not."""
    level = 0
    for position in range(start, len(text)):
        if text[position] == "{":
            level += 1
        elif text[position] == "}":
            level -= 1
            if level == 0:
                return position
    return -1


def depth(text: str) -> int:
    """Return how deeply brackets of any kind are nested; unbalanced ones count as open."""
    level = deepest = 0
    for character in text:
        if character in "([{⦃":
            level += 1
            deepest = max(deepest, level)
        elif character in ")]}⦄":
            level = max(0, level - 1)
    return deepest


_TOKEN = re.compile(r"\\begin\{\w+\*?\}|\\end\{\w+\*?\}|\\[a-zA-Z]+|\\.|[\s\S]")


def split(text: str, separators: frozenset[str]) -> list[str]:
    """Split at separators outside brackets. Brackets need not match in kind: `[0,1)` is a pair."""
    parts = [""]
    level = 0
    for token in _TOKEN.findall(text):
        if token in "([{⦃⟨" or token.startswith(r"\begin"):
            level += 1
        elif token in ")]}⦄⟩" or token.startswith(r"\end"):
            level -= 1
        if level == 0 and token in separators:
            parts.append("")
        else:
            parts[-1] += token
    return [part.strip() for part in parts]


@dataclass(frozen=True, slots=True)
class Items:
    """Several items in one text, with the brackets around them (empty for a bare list)."""

    opening: str
    closing: str
    items: tuple[str, ...]
    in_words: bool = False
    """Whether "and" or "or" joins them: then they are not a tuple."""


def connect(text: str) -> str:
    """Replace the bare words or and and by signs, unless the text is a sentence."""
    if "\\text" in text:
        return text
    return _CONNECTIVE.sub(lambda match: "∨" if match[1] == "or" else "∧", text)


def items(text: str) -> Items | None:
    """Return the items of a list, set, tuple or interval; None for a single value."""
    connected = connect(text)
    parts = split(connected, SEPARATORS)
    if len(parts) > 1:
        in_words = len(split(connected, frozenset({",", ";"}))) < len(parts)
        return Items("", "", tuple(part for part in parts if part), in_words)
    if len(text) > 1 and text[0] in "([⦃⟨" and text[-1] in ")]⦄⟩" and _wraps(text):
        inner = split(text[1:-1], SEPARATORS if text[0] == "⦃" else frozenset({",", ";"}))
        if len(inner) > 1 or text[0] == "⦃":
            return Items(text[0], text[-1], tuple(part for part in inner if part))
    return None


def _wraps(text: str) -> bool:
    """Return whether the first and the last character are one pair of brackets."""
    level = 0
    for position, character in enumerate(text):
        level += (character in "([{⦃⟨") - (character in ")]}⦄⟩")
        if level == 0:
            return position == len(text) - 1
    return False


def bare(text: str) -> str:
    """Remove brackets around a single value: `(5)` is `5`."""
    while len(text) > 1 and text[0] + text[-1] in ("()", "{}") and _wraps(text) and not items(text):
        text = text[1:-1].strip()
    return text


def sides(text: str) -> list[str]:
    """Return the parts of an equation chain; one part without an equals sign."""
    parts = split(re.sub(r"(?<![<>!])=+", "=", text), frozenset({"=", r"\approx"}))
    return parts[1:] if len(parts) > 1 and not parts[0] else parts


_RELATIONS = frozenset({"<", ">", r"\le", r"\ge", r"\ne"})


def relations(text: str) -> tuple[list[str], list[str]]:
    r"""Return the terms of a chain of inequalities and its signs: `0<x\le 1` has three terms and two signs."""
    terms, signs, level = [""], [], 0
    for token in _TOKEN.findall(text):
        level += (token in "([{⦃⟨") - (token in ")]}⦄⟩")
        if level == 0 and token in _RELATIONS:
            signs.append(token)
            terms.append("")
        else:
            terms[-1] += token
    return [term.strip() for term in terms], signs


_MATRIX = re.compile(r"\\begin\{([pbB]?matrix|smallmatrix|array)\}(?:\{[^{}]*\})?([\s\S]*)\\end\{\1\}")


def matrix(text: str) -> list[list[str]] | None:
    """Return the cells of a text that is one matrix, else None."""
    inner = text[1:-1].strip() if text[:1] in ("(", "[") and text[-1:] in (")", "]") else text
    match = _MATRIX.fullmatch(inner)
    if not match or r"\begin" in match[2]:
        return None
    rows = [row for row in re.split(r"\\\\", match[2]) if row.strip()]
    return [[cell.strip() for cell in row.split("&")] for row in rows]
