"""Demonstrations: chats of a teacher that solved their tasks, and the files that hold them.

They are kept under the short prompt that training uses, without the manual of the language, so that the student learns
the language itself (context distillation). Duplicates are removed, and no kind of design has more than its share.
"""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ..atomic import atomic_write
from ..config import PromptsConfig
from ..errors import MetaAgentXError
from ..rollout.designer import design_messages
from ..runs.serialize import Serializer
from ..tools import ToolSpec
from ..types import Role, Rollout, Task

FORMAT = 1
Group = tuple[Role, str, str]


@dataclass(frozen=True, slots=True)
class Demonstration:
    """One reply to imitate, and where it comes from."""

    messages: tuple[Mapping[str, str], ...]
    """The prompt, in its short form, and last the reply."""
    role: Role
    task: str = ""
    source: str = ""
    pattern: str = ""
    teacher: str = ""
    format: int = FORMAT

    @property
    def group(self) -> Group:
        """Return what makes rows one kind: role, source and kind of design."""
        return self.role, self.source, self.pattern


@dataclass(slots=True)
class TeacherUsage:
    """How much the teacher did. Tokens are as its server counts them."""

    tasks: int = 0
    executions: int = 0
    solved: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def __add__(self, other: "TeacherUsage") -> "TeacherUsage":
        return TeacherUsage(*(a + b for a, b in zip(asdict(self).values(), asdict(other).values(), strict=True)))

    @property
    def solved_share(self) -> float:
        """Return the share of executions that solved their task."""
        return self.solved / max(1, self.executions)

    def cost(self, prompt_price: float, completion_price: float) -> float:
        """Return the cost, for prices per million tokens."""
        return (self.prompt_tokens * prompt_price + self.completion_tokens * completion_price) / 1e6


_ROWS, _USAGES = Serializer(Demonstration), Serializer(TeacherUsage)


def demonstrations_of(
    rollout: Rollout, teacher: str, prompts: PromptsConfig, tools: Sequence[ToolSpec] = ()
) -> Iterator[Demonstration]:
    """Yield every call of the executions that solved their task, and the designs they belong to.

    `prompts` and `tools` are those that the student will be trained with.
    """
    task = rollout.task
    for design in rollout.designs:
        solved = [execution for execution in design.executions if execution.reward and execution.reward.solved]
        if solved:
            messages = (*design_messages(task, prompts, tools=tools), _assistant(design.call.text))
            yield Demonstration(messages, Role.DESIGNER, task.id, task.source, design.pattern, teacher)
        for execution in solved:
            for call in execution.calls:
                messages = (*call.messages, _assistant(call.text))
                yield Demonstration(messages, Role.EXECUTOR, task.id, task.source, design.pattern, teacher)


def _assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def deduplicate(rows: Iterable[Demonstration], unique: dict[bytes, Demonstration] | None = None) -> list[Demonstration]:
    """Return the rows with the first of equal chats only, at the position of the last one.

    `unique` holds the rows of earlier calls and is extended.
    """
    unique = {} if unique is None else unique
    for row in rows:
        digest = hashlib.sha256(json.dumps(row.messages, sort_keys=True).encode()).digest()
        unique[digest] = unique.pop(digest, row)
    return list(unique.values())


def balance(rows: Sequence[Demonstration]) -> list[Demonstration]:
    """Limit each kind of design to the mean count, rounded up, of the kinds of its role and source."""
    kinds = Counter(group[:2] for group in {row.group for row in rows})
    totals = Counter(row.group[:2] for row in rows)
    counts: Counter[Group] = Counter()
    balanced = []
    for row in rows:
        counts[row.group] += 1
        if counts[row.group] <= math.ceil(totals[row.group[:2]] / kinds[row.group[:2]]):
            balanced.append(row)
    return balanced


def trim(rows: Sequence[Demonstration], targets: Mapping[Role, int]) -> list[Demonstration]:
    """Return at most `targets[role]` rows of each role, spaced evenly: shares of sources and designs stay the same."""
    indices = set(range(len(rows)))
    for role, target in targets.items():
        of_role = [index for index, row in enumerate(rows) if row.role is role]
        if len(of_role) > target:
            indices -= set(of_role) - {of_role[number * len(of_role) // target] for number in range(target)}
    return [rows[index] for index in sorted(indices)]


def write_rows(path: Path, rows: Sequence[Demonstration]) -> None:
    """Write rows as JSON Lines, atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(_ROWS.dump(row), ensure_ascii=False) + "\n" for row in rows)
    atomic_write(path, text.encode())


def read_rows(path: Path) -> list[Demonstration]:
    """Read rows that `write_rows` wrote, or a file of your own with `messages` and `role`."""
    if not path.is_file():
        raise MetaAgentXError(f"{path} does not exist: create it with `metaagentx coldstart`")
    try:
        lines = _lines(path)
    except UnicodeDecodeError as error:
        raise MetaAgentXError(f"{path} is not UTF-8 text ({error}): remove it and create it again") from error
    return [_read_row(path, number, line) for number, line in enumerate(lines, 1)]


def _read_row(path: Path, number: int, line: str) -> Demonstration:
    try:
        data = json.loads(line)
        # Files of other programs have more in their messages and rows: only what is learned from is checked.
        messages = tuple({key: str(message[key]) for key in ("role", "content")} for message in data["messages"])
        if not messages or messages[-1]["role"] != "assistant":
            raise ValueError("the last message is not the assistant's")
        task, source, pattern, teacher = (str(data.get(key) or "") for key in ("task", "source", "pattern", "teacher"))
        return Demonstration(messages, Role(data["role"]), task, source, pattern, teacher)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise MetaAgentXError(f"{path}, line {number} is not a demonstration: {error!r}") from error


def _lines(path: Path) -> list[str]:
    """Split a JSON Lines file at newlines only: `splitlines` would also split inside texts."""
    text = path.read_text("utf-8").removesuffix("\n")
    return text.split("\n") if text else []


def task_digest(tasks: Sequence[Task]) -> str:
    """Return a digest of the questions and gradings of tasks; where their files are does not matter."""
    return hashlib.sha256(repr([(task.question, task.grading) for task in tasks]).encode()).hexdigest()[:16]


def write_batch(path: Path, rows: Sequence[Demonstration], usage: TeacherUsage, content: str) -> None:
    """Write a finished batch: a line with the usage and the digest of its tasks, then the rows."""
    head = {**asdict(usage), "content": content}
    lines = [json.dumps(head), *(json.dumps(_ROWS.dump(row), ensure_ascii=False) for row in rows)]
    atomic_write(path, ("\n".join(lines) + "\n").encode())


def read_batch(path: Path, content: str) -> tuple[list[Demonstration], TeacherUsage]:
    """Read a batch; `content` is the digest that its tasks must have."""
    try:
        first, *lines = _lines(path)
        head = json.loads(first)
        usage, written = _USAGES.load(head), head["content"]
    except (ValueError, KeyError, RecursionError, MetaAgentXError) as error:
        raise MetaAgentXError(
            f"{path} is damaged ({error}): remove it, and the same command creates it again"
        ) from error
    if written != content:
        raise MetaAgentXError(
            f"{path} was made with other tasks than there are now (content = {written}, now {content}): "
            "restore the task file, or use another directory"
        )
    return [_read_row(path, number, line) for number, line in enumerate(lines, 2)], usage
