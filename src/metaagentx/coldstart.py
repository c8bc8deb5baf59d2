"""A teacher's designs and executions that solved their tasks, as chats to learn from.

The teacher reads the long prompt, with the language's manual, and goes through the same rollout as everybody. What
solved its task is kept under the short prompt: the student learns the language itself (context distillation). Kept
rows are de-duplicated, and no kind of design has more than its share. Work is done in batches, each
written down when it is finished: what was stopped goes on with the next one.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from .designer import design_messages
from .errors import MetaAgentXError
from .policy import CountsWork
from .progress import Counter as Progress
from .rollout import Resources, RolloutOptions, grow
from .runs.files import write_whole
from .types import Role, Rollout, Task

FORMAT = 1
Group = tuple[Role, str, str]


@dataclass(frozen=True, slots=True)
class Row:
    """One reply to learn, with where it comes from."""

    messages: tuple[Mapping[str, str], ...]
    """What was read, under the short prompt, and last the reply."""
    role: Role
    task: str
    source: str
    pattern: str
    teacher: str
    format: int = FORMAT

    @property
    def group(self) -> Group:
        """Rows that are of one kind: role, source and kind of design."""
        return self.role, self.source, self.pattern


@dataclass(slots=True)
class Bill:
    """What the teacher did."""

    tasks: int = 0
    executions: int = 0
    solved: int = 0
    prompt_tokens: int = 0
    """As the teacher's server counts them."""
    completion_tokens: int = 0

    def cost(self, per_million_read: float, per_million_written: float) -> float:
        """In the currency of the prices."""
        return (self.prompt_tokens * per_million_read + self.completion_tokens * per_million_written) / 1e6


@dataclass(frozen=True, slots=True)
class Teaching:
    """How the teacher is asked."""

    tasks: Sequence[Task]
    resources: Resources
    options: RolloutOptions
    teacher: str
    """Its name, kept with every row."""
    manual: bool = True
    """Whether it reads the language's manual."""
    seed: int = 0
    batch: int = 256
    """Tasks that are done together: what a stop can lose, and how often it is looked whether `targets` are reached."""
    targets: Mapping[Role, int] = field(default_factory=dict)
    """How many rows of a role are enough. When all are reached, no further task is solved."""


async def collect(teaching: Teaching, directory: Path) -> tuple[list[Row], Bill]:
    """Rows of all tasks, or of as many as reach the targets. `directory` keeps the batches, so that it can be called
    again after a stop.
    """
    directory.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    bill = Bill()
    tally = _Tally()
    with Progress(len(teaching.tasks), "the teacher solves tasks") as progress:
        for number, start in enumerate(range(0, len(teaching.tasks), teaching.batch)):
            tasks = teaching.tasks[start : start + teaching.batch]
            file = directory / f"batch-{number:05d}.jsonl"
            if not file.exists():
                _write_batch(file, *await _teach(teaching, number, tasks), _content(tasks))
            kept, part = _read_batch(file, _content(tasks))
            rows += kept
            bill = Bill(*(a + b for a, b in zip(asdict(bill).values(), asdict(part).values(), strict=True)))
            tally.add(kept)
            progress.advance(
                len(tasks), solved=bill.solved / max(1, bill.executions), **tally.figures(teaching.targets)
            )
            if tally.reaches(teaching.targets):
                break
    return trim(balance(deduplicate(rows)), teaching.targets), bill


class _Tally:
    """How many rows of each role would be kept so far."""

    def __init__(self) -> None:
        self._seen: set[bytes] = set()
        self._groups: Counter[Group] = Counter()

    def add(self, rows: Sequence[Row]) -> None:
        for row in rows:
            mark = hashlib.sha256(_chat(row).encode()).digest()
            if mark not in self._seen:
                self._seen.add(mark)
                self._groups[row.group] += 1

    def rows(self, role: Role) -> int:
        caps = _caps(self._groups)
        return sum(min(n, caps[group[:2]]) for group, n in self._groups.items() if group[0] is role)

    def figures(self, targets: Mapping[Role, int]) -> dict[str, str]:
        """For the progress: `designer_rows 120 of 3000`."""
        enough = {role: f" of {targets[role]}" if role in targets else "" for role in Role}
        return {f"{role}_rows": f"{self.rows(role)}{enough[role]}" for role in Role}

    def reaches(self, targets: Mapping[Role, int]) -> bool:
        return bool(targets) and all(self.rows(role) >= target for role, target in targets.items())


async def _teach(teaching: Teaching, number: int, tasks: Sequence[Task]) -> tuple[list[Row], Bill]:
    options = replace(teaching.options, manual=teaching.manual, full=True)
    before = _counted(teaching.resources)
    rollouts = await grow(tasks, teaching.resources, options, (teaching.seed, "coldstart", number))
    after = _counted(teaching.resources)
    executions = [e for tree in rollouts for design in tree.designs for e in design.executions]
    bill = Bill(
        len(tasks),
        len(executions),
        sum(e.reward is not None and e.reward.solved for e in executions),
        *(int(later - earlier) for earlier, later in zip(before, after, strict=True)),
    )
    return [row for tree in rollouts for row in kept_rows(tree, teaching.teacher)], bill


def _counted(resources: Resources) -> tuple[float, float]:
    """Tokens read and written so far, as the teacher's server counts them; nothing where there is no server."""
    policy = resources.speakers[Role.DESIGNER].policy
    work = policy.work() if isinstance(policy, CountsWork) else {}
    return work.get("prompt_tokens", 0), work.get("completion_tokens", 0)


def kept_rows(rollout: Rollout, teacher: str) -> Iterator[Row]:
    """Of a tree what solved its task: every call of a solved execution, and the design it is of."""
    task = rollout.task
    for design in rollout.designs:
        solved = [e for e in design.executions if e.reward is not None and e.reward.solved]
        if solved:
            chat = (*design_messages(task), _reply(design.call.text))
            yield Row(chat, Role.DESIGNER, task.id, task.source, design.pattern, teacher)
        for execution in solved:
            for call in execution.calls:
                chat = (*call.messages, _reply(call.text))
                yield Row(chat, Role.EXECUTOR, task.id, task.source, design.pattern, teacher)


def _reply(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def deduplicate(rows: Sequence[Row]) -> list[Row]:
    """The first of equal chats."""
    return list({_chat(row): row for row in reversed(rows)}.values())[::-1]


def _chat(row: Row) -> str:
    return json.dumps(row.messages, sort_keys=True)


def balance(rows: Sequence[Row]) -> list[Row]:
    """Of a role and a source no design has more rows than the mean of its designs."""
    caps = _caps(Counter(row.group for row in rows))
    taken: Counter[Group] = Counter()
    kept = []
    for row in rows:
        taken[row.group] += 1
        if taken[row.group] <= caps[row.group[:2]]:
            kept.append(row)
    return kept


def _caps(counts: Mapping[Group, int]) -> dict[tuple[Role, str], int]:
    """By role and source: the most rows of a kind of design, the mean of its kinds rounded up."""
    peers: dict[tuple[Role, str], list[int]] = {}
    for group, count in counts.items():
        peers.setdefault(group[:2], []).append(count)
    return {part: -(-sum(own) // len(own)) for part, own in peers.items()}


def trim(rows: Sequence[Row], targets: Mapping[Role, int]) -> list[Row]:
    """At most as many rows of a role as its target, taken evenly from all of them: the shares of sources and designs
    stay as they are.
    """
    kept = set(range(len(rows)))
    for role, target in targets.items():
        own = [place for place, row in enumerate(rows) if row.role is role]
        if len(own) > target:
            kept -= set(own) - {own[number * len(own) // target] for number in range(target)}
    return [rows[place] for place in sorted(kept)]


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Chats as JSON Lines, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(asdict(row), ensure_ascii=False) + "\n" for row in rows)
    write_whole(path, text.encode())


def read_rows(path: Path) -> list[Row]:
    """What `write_rows` wrote, or a file of your own with `messages` and `role`."""
    if not path.is_file():
        raise MetaAgentXError(f"there is no file {path}: `metaagentx coldstart` makes one")
    try:
        lines = _lines(path)
    except UnicodeDecodeError as error:
        raise MetaAgentXError(f"{path} is no text ({error}): remove it and make it anew") from error
    return [_read_row(path, number, line) for number, line in enumerate(lines, 1)]


def _read_row(path: Path, number: int, line: str) -> Row:
    try:
        data = json.loads(line)
        messages = tuple({"role": str(m["role"]), "content": str(m["content"])} for m in data["messages"])
        if not messages or messages[-1]["role"] != "assistant":
            raise ValueError("the last message is not the assistant's")
        task, source, pattern, teacher = (str(data.get(key, "")) for key in ("task", "source", "pattern", "teacher"))
        return Row(messages, Role(data["role"]), task, source, pattern, teacher)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise MetaAgentXError(f"{path}, line {number} is no chat to learn from: {error!r}") from error


def _lines(path: Path) -> list[str]:
    """Of a JSON Lines file: texts may hold what else Python takes for the end of a line."""
    text = path.read_text("utf-8").removesuffix("\n")
    return text.split("\n") if text else []


def _content(tasks: Sequence[Task]) -> str:
    """A name for what tasks ask and how they are graded, wherever they were read from."""
    return hashlib.sha256(repr([(task.question, task.grading) for task in tasks]).encode()).hexdigest()[:16]


def _write_batch(path: Path, rows: Sequence[Row], bill: Bill, content: str) -> None:
    head = {**asdict(bill), "content": content}
    lines = [json.dumps(head), *(json.dumps(asdict(row), ensure_ascii=False) for row in rows)]
    write_whole(path, ("\n".join(lines) + "\n").encode())


def _read_batch(path: Path, content: str) -> tuple[list[Row], Bill]:
    try:
        first, *lines = _lines(path)
        head = json.loads(first)
        written = head.pop("content")
        bill = Bill(**head)
        if not all(type(count) is int for count in asdict(bill).values()):
            raise ValueError("its counts are no numbers")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise MetaAgentXError(
            f"{path} is damaged ({error!r}): remove it, and the same command makes it anew"
        ) from error
    if written != content:
        raise MetaAgentXError(
            f"{path} was made with other tasks than there are now (content = {written}, now {content}): "
            "put their file back as it was, or begin in another directory"
        )
    return [_read_row(path, number, line) for number, line in enumerate(lines, 2)], bill
