"""The tokenizer of the embedded model: byte-level BPE, taught on our language and protocol.

Text that the protocol fixes (the instruction to agents, tags, the openings of scripts) is one token each, though not a
special one: it decodes as the text it is. Digits stand alone, so that numbers are written digit by digit. The same
vocabulary size gives the same bytes on every machine.

With texts to learn from, such as those of a cold start, what comes again and again in them (a whole line, the beginning
or the end of one) is one token too, and letters stand alone like digits: a very small model cannot learn how words are
spelt.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from ... import workflow
from ...workflow.agent import LAST_TURN
from ...workflow.manual import language_manual
from ...workflow.nodes import DEBATE_REQUEST, JUDGE_REQUEST, REFINEMENT_REQUEST, REFLECTION_REQUEST
from ...workflow.protocol import INSTRUCTION
from ...workflow.reply import DESIGN_REQUEST, DESIGNER_LINE, LABELS

END = "<|end|>"
PAD = "<|pad|>"
ROLES = ("system", "user", "assistant", "tool")

TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if message['role'] not in ['system', 'user', 'assistant', 'tool'] -%}"
    "{{- raise_exception('there is no role ' + message['role']) -}}"
    "{%- endif -%}"
    "{{- '<|' + message['role'] + '|>' + message['content'] + '<|end|>' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"
)

_TAGS = ("delivery", "solution", "code", "tool_call", "think")
_FIXED = (
    DESIGNER_LINE,
    DESIGN_REQUEST,
    INSTRUCTION,
    LAST_TURN,
    JUDGE_REQUEST,
    REFLECTION_REQUEST,
    REFINEMENT_REQUEST,
    DEBATE_REQUEST,
    *(f"{slash}{tag}>" for tag in _TAGS for slash in ("<", "</")),
    *(f"{label}: " for label in LABELS),
    "\\boxed{",
    "```python\n",
    "Question:\n",
    "from workflow import ",
    "from workflow.nodes import ",
    "AgentNode(name=",
    "EnsembleNode(name=",
    "ReflectionNode(name=",
    "DebateNode(name=",
    "RouterNode(name=",
    "Workflow(name=",
    ", system_prompt=",
    ", tool_registry=",
    ', strategy="majority_vote"',
    ', strategy="consensus"',
    "workflow.add_node(",
    "result = workflow.run(question)\nprint(result.content)\n",
)

# What agents write, beyond the manual: plain sentences of solutions and short programs.
_SAMPLES = (
    "Let x be the number of apples. Then 2x + 3 = 17, so 2x = 14 and x = 7. The answer is \\boxed{7}.",
    "First we compute the sum: 12 + 35 = 47. Then we multiply by 3: 47 * 3 = 141. Therefore the total is 141.",
    "We have \\frac{a}{b} = \\sqrt{2}, which is not rational. Since n is even, n = 2k for some integer k.",
    "Sort the digits in descending order. Reverse the word. Count the letters. Check each step and verify the result.",
    "How many ways are there to choose 3 of 10 people? There are \\binom{10}{3} = 120 ways.",
    "If the train travels 60 miles per hour for 2.5 hours, the distance is 60 * 2.5 = 150 miles.",
    "def solve(n):\n    total = 0\n    for i in range(1, n + 1):\n        if i % 2 == 0:\n            total += i\n"
    "    return total\n\nprint(solve(int(input())))\n",
    "n = int(input())\nvalues = list(map(int, input().split()))\nvalues.sort(reverse=True)\n"
    "print(' '.join(str(v) for v in values))\n",
    "import math\nimport sys\n\ndata = sys.stdin.read().split()\nresult = []\nwhile data:\n    x = data.pop()\n"
    "    result.append(x)\nprint(len(result), max(result), min(result), math.gcd(12, 18))\n",
    "The result is correct. The result is wrong: the second step is an error. I agree. Verdict: correct.",
    "The output is True. The output is False. Yes, because both sides are equal. No, this case fails.",
)


def train_tokenizer(vocabulary: int, texts: Sequence[str] = ()) -> Any:
    """A tokenizer of that many tokens (with texts: at most) as transformers uses it, with the chat template."""
    from transformers import PreTrainedTokenizerFast

    special = [PAD, END, *(f"<|{role}|>" for role in ROLES)]
    smallest = len(special) + 256
    fixed = list(dict.fromkeys([*_FIXED, *common_phrases(texts, vocabulary - smallest - len(_FIXED))]))
    alone = pre_tokenizers.Split(Regex("[0-9A-Za-z]" if texts else r"\d"), "isolated")
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [alone, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not texts)]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary - len(fixed),
        min_frequency=max(2, len(texts) // 200),
        special_tokens=special,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    bpe.train_from_iterator(texts or _texts(), trainer)
    bpe.add_tokens([AddedToken(text, normalized=False) for text in fixed])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token=END, pad_token=PAD, additional_special_tokens=special[2:]
    )
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def common_phrases(texts: Sequence[str], most: int) -> list[str]:
    """Lines, and beginnings and ends of lines, that one text in a hundred has; the most frequent first."""
    enough = max(5, len(texts) // 100)
    lines = Counter(line for text in texts for line in re.findall(r"[^\n]+\n?|\n", text))
    found = Counter({line: count for line, count in lines.items() if count >= enough})
    others = Counter({line: count for line, count in lines.items() if count < enough})
    found |= _edges(others, enough, _beginnings)
    found |= _edges(others, enough, _ends)
    chosen = [phrase for phrase in found if len(phrase) > 3]
    return sorted(chosen, key=lambda phrase: (-found[phrase] * len(phrase), phrase))[: max(0, most)]


def _edges(lines: Counter[str], enough: int, edges_of: Callable[[str], Iterable[str]]) -> Counter[str]:
    """Of each line the longest edge that is frequent."""
    counts: Counter[str] = Counter()
    for line, count in lines.items():
        for edge in edges_of(line):
            counts[edge] += count
    longest: Counter[str] = Counter()
    for line, count in lines.items():
        frequent = [edge for edge in edges_of(line) if counts[edge] >= enough]
        if frequent:
            longest[max(frequent, key=len)] += count
    return longest


def _beginnings(line: str) -> list[str]:
    return [line[: space.end()] for space in re.finditer(r"\s", line) if not re.search(r"\d", line[: space.end()])]


def _ends(line: str) -> list[str]:
    ends = [line[space.start() :] for space in re.finditer(r"\s", line[:-1])]
    return [end for end in ends if not re.search(r"\d", end)]


def _texts() -> Iterator[str]:
    examples = Path(workflow.__file__).parent / "examples"
    yield language_manual()
    for _ in range(4):  # scripts and solutions are what the model writes; the manual it only reads, if at all
        yield from (file.read_text() for file in sorted(examples.glob("*.py")))
        yield from _SAMPLES
