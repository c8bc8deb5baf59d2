"""Trains the tokenizer of the models that `new_model` creates: byte-level BPE on our workflow language and protocol.

Texts that the protocol fixes (the instruction to agents, tags, the first lines of scripts) are one token each, though
not a special one: they decode as text. Digits are separate tokens. The same vocabulary size gives the same bytes on
every machine.

Trained on other texts, such as those of a cold start, frequent phrases are one token too, and a word is split from what
surrounds it, so that a frequent one is the same token everywhere: a very small model finds it again more easily.
"""

import re
from collections import Counter
from collections.abc import Container, Iterator, Sequence
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

_WORD = "[A-Za-z]+"
# Besides the manual: sentences of solutions and short programs, as agents write them.
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
    """Return a transformers tokenizer of this many tokens (at most, with `texts`), with the chat template."""
    from transformers import PreTrainedTokenizerFast

    special = [PAD, END, *(f"<|{role}|>" for role in ROLES)]
    max_phrases = (vocabulary - len(special) - 256 - len(_FIXED)) // 2  # the rest is for words
    fixed = list(dict.fromkeys([*_FIXED, *common_phrases(texts, max_phrases)]))
    separate = pre_tokenizers.Split(Regex(rf"{_WORD}|\d" if texts else r"\d"), "isolated")
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [separate, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not texts)]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary - len(fixed),
        min_frequency=max(2, len(texts) // 2000),
        special_tokens=special,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    bpe.train_from_iterator(_without(fixed, texts) if texts else _default_texts(), trainer)
    bpe.add_tokens([AddedToken(text, normalized=False) for text in fixed])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token=END, pad_token=PAD, additional_special_tokens=special[2:]
    )
    tokenizer.chat_template = TEMPLATE
    # Without it, `transformers serve` looks for the chat format of published Qwen3 models and returns the prompt too.
    tokenizer.response_template = {
        "defaults": {"role": "assistant"},
        "start_anchor": "<|assistant|>",
        "fields": {"content": {"close": END, "content": "text"}},
    }
    return tokenizer


def common_phrases(texts: Sequence[str], max_phrases: int) -> list[str]:
    """Return what texts have in common: what stands between their rare words, digits and line ends, once in two hundred
    texts. The longest times count first."""
    occurrences = Counter(word for text in texts for word in set(re.findall(_WORD, text)))
    common_words = {word for word, count in occurrences.items() if count >= len(texts) / 33}
    phrases = Counter(phrase for text in texts for phrase in _between(text, common_words))
    frequent = [phrase for phrase, count in phrases.items() if count >= max(5, len(texts) // 200) and len(phrase) > 3]
    return sorted(frequent, key=lambda phrase: (-phrases[phrase] * len(phrase), phrase))[: max(0, max_phrases)]


def _between(text: str, common_words: Container[str]) -> Iterator[str]:
    """Yield the parts of a text between rare words and digits, at most a line each."""
    phrase = ""
    for part in re.findall(rf"{_WORD}|\d|\n|[^A-Za-z\d\n]+", text):
        rare = part.isdigit() or (part.isalpha() and part not in common_words)
        if not rare:
            phrase += part
        if rare or part == "\n":
            yield phrase
            phrase = ""
    yield phrase


def _without(phrases: Sequence[str], texts: Sequence[str]) -> Iterator[str]:
    """Yield what is left of the texts without the phrases, which are tokens of their own."""
    longest_first = sorted(phrases, key=len, reverse=True)
    pattern = re.compile("|".join(map(re.escape, longest_first)))
    return (part for text in texts for part in pattern.split(text) if part)


def _default_texts() -> Iterator[str]:
    examples = Path(workflow.__file__).parent / "examples"
    yield language_manual()
    for _ in range(4):  # the model writes scripts and solutions; it reads the manual at most
        yield from (file.read_text() for file in sorted(examples.glob("*.py")))
        yield from _SAMPLES
