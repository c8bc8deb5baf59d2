"""Search over the trees of a run or of all runs: filters by the index, text by reading the files.

A request works for a short time and returns where it stopped; the page asks again from there until it has enough. So a
search through some gigabytes shows its first results at once, and nothing keeps a second copy of all texts.
"""

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

from ..errors import MetaAgentXError
from ..types import JSON, Call, Design, Execution, Role
from .index import Row, TreeIndex, read_tree
from .library import Library

_SECONDS = 0.6
_PAGE = 100
_AROUND = 80
"""Characters that a result shows on either side of what was found."""
_PER_TREE = 20
_WORDS = {"yes": 1, "no": 0}


@dataclass(frozen=True, slots=True)
class Query:
    """What is searched for. Empty texts filter nothing."""

    run: str = ""
    text: str = ""
    role: str = ""
    """Whose replies the text is searched in: `designer`, `executor`, or everything."""
    agent: str = ""
    source: str = ""
    pattern: str = ""
    fault: str = ""
    """A kind, or `any`, or `none`."""
    solved: str = ""
    reward: str = ""
    """A number, or `<1`, `<=1`, `>1`, `>=1`."""
    first: int = 0
    last: int = 1 << 60
    cursor: str = ""

    @classmethod
    def parse(cls, parameters: Mapping[str, str]) -> Self:
        """Return the query of a request; raise MetaAgentXError if it cannot be understood."""
        names = ("run", "role", "agent", "source", "pattern", "fault", "solved", "reward", "cursor")
        fields: dict[str, Any] = {name: parameters.get(name, "").strip()[:1000] for name in names}
        fields["text"] = parameters.get("q", "").strip()[:1000]
        for name in ("first", "last"):
            value = parameters.get(name, "").strip()
            if value:
                if not (value.isascii() and value.isdecimal() and len(value) < 16):
                    raise MetaAgentXError(f"{name} step: invalid value {value[:50]!r}, expected a number")
                fields[name] = int(value)
        query = cls(**fields)
        query.conditions()
        return query

    def conditions(self) -> tuple[list[str], list[object]]:
        """Return the conditions on an execution and the values in them, for the index."""
        conditions = ["d.step BETWEEN ? AND ?"]
        values: list[object] = [self.first, self.last]
        wanted: list[tuple[str, str]] = [("t.source", self.source), ("d.pattern", self.pattern)]
        for column, value in wanted:
            if value:
                conditions.append(f"{column} = ?")
                values.append(value)
        if self.agent:
            conditions.append("instr(lower(e.agents), lower(?))")
            values.append(self.agent)
        if self.fault in ("any", "none"):
            conditions.append("(d.fault != '' OR ifnull(e.fault, '') != '')" if self.fault == "any" else _NO_FAULT)
        elif self.fault:
            conditions.append("(d.fault = ? OR e.fault = ?)")
            values += [self.fault, self.fault]
        if self.solved:
            if self.solved not in _WORDS:
                raise MetaAgentXError(f"solved: invalid value {self.solved[:50]!r}, expected yes or no")
            conditions.append("e.solved = ?")
            values.append(_WORDS[self.solved])
        if self.reward:
            operator, number = _comparison(self.reward)
            conditions.append(f"ifnull(e.reward, d.reward) {operator} ?")
            values.append(number)
        return conditions, values

    @property
    def filters(self) -> bool:
        """Return whether anything but the text and the steps is asked for."""
        return any((self.agent, self.source, self.pattern, self.fault, self.solved, self.reward))


_NO_FAULT = "(d.fault = '' AND ifnull(e.fault, '') = '')"


def search(library: Library, query: Query) -> dict[str, Any]:
    """Return results, and `cursor` if there may be more. Results of one tree come together."""
    names = [query.run] if query.run else [run.identifier for run in library.runs()]
    start_run, start_step, start_task = _place(query.cursor)
    deadline = time.monotonic() + _SECONDS
    results: list[JSON] = []
    searched = total = 0
    for number, name in enumerate(names[start_run:], start=start_run):
        index = library.index(name)
        files = [step for step in index.files() if query.first <= step <= query.last]
        total += len(files)
        for step in files:
            if number == start_run and step < start_step:
                searched += 1
                continue
            after = start_task if number == start_run and step == start_step else -1
            for task, found in _in_step(index, query, name, step, after):
                results += found
                if len(results) >= _PAGE or time.monotonic() > deadline:
                    return _answer(results, f"{number}:{step}:{task}", searched, total)
            searched += 1
            if time.monotonic() > deadline and step != files[-1]:
                return _answer(results, f"{number}:{step + 1}:-1", searched, total)
        if time.monotonic() > deadline and number + 1 < len(names):
            return _answer(results, f"{number + 1}:0:-1", searched, total)
    return _answer(results, "", searched, total)


def _answer(results: list[JSON], cursor: str, searched: int, total: int) -> dict[str, Any]:
    return {"results": results, "cursor": cursor, "searched": searched, "files": total}


def _in_step(index: TreeIndex, query: Query, run: str, step: int, after: int) -> Iterator[tuple[int, list[JSON]]]:
    """Yield the results of each task of a step, also empty ones: between them a search may stop."""
    try:
        path = index.ensure(step)
    except MetaAgentXError:
        return
    candidates = _candidates(index, query, step, after)
    if not query.text:
        for task, rows in candidates.items():
            yield task, [_result(run, row) for row in rows]
        return
    needle = _needle(query.text)
    try:
        with path.open("rb") as file:
            for task, rows in candidates.items():
                file.seek(rows[0][0])
                line = file.read(rows[0][1])
                if _may_hold(line, needle):
                    yield task, _in_tree(query, run, rows, line)
                else:
                    yield task, []
    except OSError:
        return


def _candidates(index: TreeIndex, query: Query, step: int, after: int) -> dict[int, list[Row]]:
    """Return the designs and executions that the filters leave, by task."""
    conditions, values = query.conditions()
    rows = index.query(
        "SELECT t.start, t.length, d.step, d.task, d.design, e.execution, ifnull(e.reward, d.reward), e.solved, "
        "CASE WHEN ifnull(e.fault, '') != '' THEN e.fault ELSE d.fault END, d.pattern, t.source, t.question, e.agents "
        "FROM designs d JOIN trees t USING (step, task) LEFT JOIN executions e USING (step, task, design) "
        f"WHERE d.step = ? AND d.task > ? AND {' AND '.join(conditions)} ORDER BY d.task, d.design, e.execution",
        step,
        after,
        *values,
    )
    by_task: dict[int, list[Row]] = {}
    for row in rows:
        by_task.setdefault(row[3], []).append(row)
    return by_task


def _result(run: str, row: Row, where: str = "", excerpt: str = "", call: int | None = None) -> JSON:
    _, _, step, task, design, execution, reward, solved, fault, pattern, source, question, _ = row
    return {
        "run": run,
        "step": step,
        "task": task,
        "design": design,
        "execution": execution,
        "call": call,
        "reward": reward,
        "solved": solved,
        "fault": fault,
        "pattern": pattern,
        "source": source,
        "question": question,
        "where": where,
        "excerpt": excerpt,
    }


def _in_tree(query: Query, run: str, rows: list[Row], line: bytes) -> list[JSON]:
    """Return where the text is in a tree, among what the filters leave."""
    try:
        tree = read_tree(line)
    except MetaAgentXError:
        return []
    found: list[JSON] = []
    text = query.text.lower()
    if not query.role and not query.filters and (excerpt := _excerpt(tree.task.question, text)):
        found.append(_result(run, (*rows[0][:5], None, *rows[0][6:]), "question", excerpt))
    designs = set[int]()
    for row in rows:
        design = tree.designs[row[4]]
        if row[4] not in designs and query.role != Role.EXECUTOR:
            designs.add(row[4])
            whole = (*row[:5], None, design.reward, None, *row[8:])
            found += [_result(run, whole, where, excerpt) for where, excerpt in _in_design(design, text)]
        if row[5] is not None and query.role != Role.DESIGNER:
            execution = design.executions[row[5]]
            hits = _in_execution(execution, text, query)
            found += [_result(run, row, where, excerpt, call) for where, excerpt, call in hits]
        if len(found) > _PER_TREE:
            break
    return found[:_PER_TREE]


def _in_design(design: Design, text: str) -> Iterator[tuple[str, str]]:
    places = {"script": design.script or "", "the Designer's reply": design.call.text}
    places["fault"] = design.fault.message if design.fault else ""
    for where, content in places.items():
        if excerpt := _excerpt(content, text):
            yield where, excerpt
            return  # a script is part of the reply


def _in_execution(execution: Execution, text: str, query: Query) -> Iterator[tuple[str, str, int | None]]:
    for number, call in enumerate(execution.calls):
        if query.agent and query.agent.lower() not in call.agent.lower():
            continue
        if excerpt := _excerpt(call.text, text) or _excerpt(call.agent, text):
            yield f"reply of {call.agent[:80]}", excerpt, number
            return
    if query.role or query.agent:
        return
    places = {
        "fault": execution.fault.message if execution.fault else "",
        "grader": execution.reward.reason if execution.reward else "",
        "output of a tool": "\n".join(tool.result for tool in execution.tools),
        "output of a program": "\n".join(program.output for program in execution.programs),
        "log": execution.log,
        "prompt": "\n".join(_script_texts(execution.calls)),
    }
    for where, content in places.items():
        if excerpt := _excerpt(content, text):
            yield where, excerpt, None
            return


def _script_texts(calls: list[Call]) -> Iterator[str]:
    for call in calls:
        for message in call.messages:
            yield message.get("content", "")


def _excerpt(content: str, text: str) -> str:
    """Return what is around a text, with marks around it; empty if it is not there."""
    lower = content.lower()
    if len(lower) != len(content):  # a few letters change their length: then the marks would be in the wrong place
        lower = "".join(low if len(low := letter.lower()) == 1 else letter for letter in content)
    at = lower.find(text)
    if at < 0:
        return ""
    end = at + len(text)
    before, after = content[max(0, at - _AROUND) : at], content[end : end + _AROUND]
    return f"{'…' if at > _AROUND else ''}{before}\x02{content[at:end]}\x03{after}"


def _needle(text: str) -> bytes:
    """Return a text as it is in a line, in lower case."""
    return json.dumps(text.lower(), ensure_ascii=False)[1:-1].encode("utf-8", "surrogatepass")


def _may_hold(line: bytes, needle: bytes) -> bool:
    """Return whether to look into the tree of a line. Other letters than those of ASCII may be escaped in it."""
    if needle.isascii():
        return needle in line.lower()
    return b"\\u" in line or needle in line.decode("utf-8", "replace").lower().encode()


def _comparison(text: str) -> tuple[str, float]:
    operator = next((sign for sign in ("<=", ">=", "<", ">", "=") if text.startswith(sign)), "")
    try:
        return operator or "=", float(text[len(operator) :])
    except ValueError:
        raise MetaAgentXError(f"reward: invalid value {text[:50]!r}, expected a number, or one after < or >") from None


def _place(cursor: str) -> tuple[int, int, int]:
    if not cursor:
        return 0, -1, -1
    try:
        run, step, task = map(int, cursor[:60].split(":"))
    except ValueError:
        raise MetaAgentXError(f"invalid cursor {cursor[:50]!r}") from None
    return max(0, run), step, task
