"""The tokenizer of the embedded model: byte-level BPE, taught on our language and protocol.

Text that the protocol fixes (the instruction to agents, tags, the openings of scripts) is one token each, though not a
special one: it decodes as the text it is. Digits stand alone, so that numbers are written digit by digit. The same
vocabulary size gives the same bytes on every machine.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from ... import workflow
from ...workflow.agent import LAST_TURN
from ...workflow.manual import language_manual
from ...workflow.nodes import DEBATE_REQUEST, JUDGE_REQUEST, REFINEMENT_REQUEST, REFLECTION_REQUEST
from ...workflow.protocol import INSTRUCTION
from ...workflow.reply import LABELS

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

DESIGN_REQUEST = "Design Multi Agent System for the Question: "

_TAGS = ("delivery", "solution", "code", "tool_call", "think")
_FIXED = (
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


def train_tokenizer(vocabulary: int) -> Any:
    """A tokenizer of that many tokens as transformers uses it, with the chat template."""
    from transformers import PreTrainedTokenizerFast

    special = [PAD, END, *(f"<|{role}|>" for role in ROLES)]
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\d"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary - len(_FIXED),
        special_tokens=special,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    bpe.train_from_iterator(_texts(), trainer)
    bpe.add_tokens([AddedToken(text, normalized=False) for text in _FIXED])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token=END, pad_token=PAD, additional_special_tokens=special[2:]
    )
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def _texts() -> Iterator[str]:
    examples = Path(workflow.__file__).parent / "examples"
    yield language_manual()
    for _ in range(4):  # scripts and solutions are what the model writes; the manual it only reads, if at all
        yield from (file.read_text() for file in sorted(examples.glob("*.py")))
        yield from _SAMPLES
