"""Example trees: of one task each design with its script, its executions and what was said, as HTML.

Everything here was written by a model or by a task's author: it is escaped, and cut where it is long. In what an agent
reads, the parts that the script wrote are marked, and every part says where it is from.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import pstdev

from ..errors import MetaAgentXError
from ..provenance import Prompts, Span
from ..runs import Run
from ..types import (
    JSON,
    Call,
    CodeTest,
    CodeTests,
    Design,
    Execution,
    Fault,
    FunctionTest,
    GymEntry,
    MathGold,
    Rollout,
    StdinTest,
    Task,
)
from .history import short_names
from .svg import escape, number

LONGEST_TEXT = 3000
LONGEST_NAME = 80
MOST_CALLS = 12
_SOURCES = {
    "question": "the question",
    "reply": "the reply of call {}",
    "tool": "the output of the program of call {}",
    "instruction": "a text of the workflow language",
}


def examples(run: Run) -> list[str]:
    """The trees of the first step that was written down, of the middle one and of the last."""
    steps = _steps(run.directory)
    chosen = sorted({steps[0], steps[len(steps) // 2], steps[-1]}) if steps else []
    return [_step(run, step) for step in chosen]


def _steps(directory: Path) -> list[int]:
    names = (path.stem for path in (directory / "rollouts").glob("*.jsonl"))
    return sorted(int(name) for name in names if name.isdecimal() and name.isascii())


def _step(run: Run, step: int) -> str:
    try:
        rollouts = [rollout for rollout in run.rollouts(step) if rollout.designs]
    except MetaAgentXError as error:  # taken back by a trainer that resumed, or damaged: the rest can be told
        return f"<h3>Step {step}</h3><p class='missing'>{escape(str(error))}</p>"
    if not rollouts:
        return f"<h3>Step {step}</h3><p class='missing'>No task of this step has a design.</p>"
    return f"<h3>Step {step}</h3>{tree(max(rollouts, key=_spread))}"


def _spread(rollout: Rollout) -> float:
    rewards = [e.reward.total for design in rollout.designs for e in design.executions if e.reward]
    rewards += [design.reward for design in rollout.designs if not design.executions and design.reward is not None]
    return pstdev(rewards) if len(rewards) > 1 else 0.0


def tree(rollout: Rollout) -> str:
    """A task with its designs."""
    task = rollout.task
    source = short_names([task.source])[task.source]
    best = max(rollout.designs, key=lambda design: -1e9 if design.reward is None else design.reward)
    numbered = enumerate(rollout.designs, start=1)
    designs = "".join(_design(design, place, task.question, is_open=design is best) for place, design in numbered)
    wanted = f"<p class='expected'>expected <code>{escape(_cut(expected(task), 300))}</code></p>"
    question = f"<div class='question'><span class='tag'>{_name(source)}</span>{_text(task.question)}{wanted}</div>"
    return f"<div class='tree'>{question}<ol class='designs'>{designs}</ol></div>"


def expected(task: Task) -> str:
    """What a right answer is, as far as the task says."""
    gold = task.grading
    if isinstance(gold, MathGold):
        unit = f" {gold.unit}" if gold.unit else ""
        within = f", within {', '.join(map(number, gold.tolerances))}" if gold.tolerances else ""
        return f"{' and '.join(gold.answers)}{unit}{within}"
    if isinstance(gold, CodeTests):
        count = f"a program that passes {len(gold.tests)} test{'s' * (len(gold.tests) != 1)}"
        return f"{count}, such as {_test(gold.tests[0], gold.entry_point)}" if gold.tests else count
    if isinstance(gold, GymEntry):
        answer = gold.entry.get("answer")
        return f"what {gold.generator} accepts" if answer is None else _plain(answer)
    return f"what {gold.function} accepts, with {_plain(gold.data)}"


def _test(test: CodeTest, entry_point: str) -> str:
    if isinstance(test, StdinTest):
        return f"{_plain(test.output.strip())} printed for {_plain(test.input.strip())}"
    if isinstance(test, FunctionTest):
        return f"{entry_point}({', '.join(map(json.dumps, test.arguments))}) = {json.dumps(test.expected)}"
    return test.source


def _plain(value: JSON) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _design(design: Design, place: int, question: str, is_open: bool) -> str:
    runs = design.executions
    solved = sum(execution.reward is not None and execution.reward.solved for execution in runs)
    head = [
        f"<b>Design {place}</b>",
        f"<span class='tag'>{_name(design.pattern or 'no structure')}</span>",
    ]
    head.append(_figure("reward", design.reward))
    head.append(_figure("advantage", design.call.advantage, signed=True))
    if runs:
        head.append(f"<span class='figure'>{solved} of {len(runs)} solved</span>")
    source = [f"<details><summary>what the Designer read and wrote</summary>{_conversation(design.call)}</details>"]
    if design.script is not None:
        opened = " open" if is_open else ""
        source.insert(0, f"<details{opened}><summary>script</summary>{_text(design.script)}</details>")
    executions = "".join(_execution(execution, number, question) for number, execution in enumerate(runs, start=1))
    return (
        f"<li class='design'><div class='head'>{''.join(head)}</div>{_fault(design.fault)}<div class='sides'>"
        f"<ol class='executions'>{executions}</ol><div>{''.join(source)}</div></div></li>"
    )


def _execution(execution: Execution, place: int, question: str) -> str:
    reward, calls = execution.reward, execution.calls
    solved = reward is not None and reward.solved
    answer = "no answer" if execution.answer is None else _cut(" ".join(execution.answer.split()), 120)
    head = [
        f"<span class='{'solved' if solved else 'unsolved'}'>{'✓ solved' if solved else '✗ not solved'}</span>",
        _figure("reward", reward.total if reward else None),
        _figure("advantage", next((call.advantage for call in calls if call.advantage is not None), None), signed=True),
        f"<code class='answer'>{escape(answer)}</code>",
        f"<span class='why'>grader: {escape(_cut(_verdict(execution), 300))}</span>",
    ]
    about = f"{len(calls)} call{'s' * (len(calls) != 1)}, {sum(call.tokens for call in calls)} tokens"
    prompts = Prompts(question, calls[:MOST_CALLS], execution.programs).calls
    inside = "".join(_call(call, spans) for call, spans in zip(calls, prompts, strict=False))
    if len(calls) > MOST_CALLS:
        inside += f"<p class='missing'>{len(calls) - MOST_CALLS} more calls are not shown.</p>"
    title = f"<summary title='execution {place}: {about}'><span class='head'>{''.join(head)}</span></summary>"
    said = f"<p class='why'>Execution {place}: {about}</p>{inside}"
    return f"<li><details>{title}{said}</details>{_fed(execution)}{_fault(execution.fault)}</li>"


def _verdict(execution: Execution) -> str:
    """What the grader said of the answer."""
    reward = execution.reward
    if reward is None:
        return "was not asked"
    return reward.reason or ("accepts the answer" if reward.solved else "does not accept the answer")


def _fed(execution: Execution) -> str:
    """Of an answer that the script fed and that was paid all the same; otherwise the fault says it."""
    if execution.fed is None or execution.fault is not None:
        return ""
    return f"<p class='fault'><b>fed</b> {escape(_cut(execution.fed, 500))}; the recipe pays for that</p>"


def _call(call: Call, spans: Sequence[Sequence[Span]]) -> str:
    cut = ", cut off at the limit" if call.finish == "length" else ""
    said = _conversation(call, [_marked(message) for message in spans])
    return f"<div class='call'><p><b>{_name(call.agent)}</b> {call.tokens} tokens{cut}</p>{said}</div>"


def _conversation(call: Call, shown: Sequence[str] | None = None) -> str:
    """What was said, each message of the prompt as `shown`, or as its text."""
    texts = [_text(message.get("content", "")) for message in call.messages] if shown is None else shown
    roles = [message.get("role", "") for message in call.messages]
    asked = "".join(f"<p class='who'>{_name(role)}</p>{text}" for role, text in zip(roles, texts, strict=True))
    return f"{asked}<p class='who'>reply</p><div class='reply'>{_text(call.text)}</div>"


def _marked(spans: Sequence[Span]) -> str:
    """A message with the source of each of its parts."""
    parts, room = [], LONGEST_TEXT
    for span in spans:
        if room <= 0:
            break
        text, room = escape(span.text[:room]), room - len(span.text)
        if span.source == "script":
            parts.append(f"<mark title='written by the script'>{text}</mark>")
        else:
            parts.append(f"<span title='{_SOURCES[span.source].format(span.call)}'>{text}</span>")
    left = sum(len(span.text) for span in spans) - LONGEST_TEXT
    note = f"<p class='missing'>{left:,} more characters are not shown.</p>" if left > 0 else ""
    return f"<pre>{''.join(parts)}</pre>{note}"


def _fault(fault: Fault | None) -> str:
    if fault is None:
        return ""
    return f"<p class='fault'><b>{_name(fault.kind)}</b> {escape(_cut(fault.message, 500))}</p>"


def _figure(name: str, value: float | None, signed: bool = False) -> str:
    shown = "–" if value is None else f"{value:+z.2f}" if signed else number(value)
    return f"<span class='figure'>{name} <b>{shown}</b></span>"


def _text(text: str) -> str:
    note = ""
    if len(text) > LONGEST_TEXT:
        note = f"<p class='missing'>{len(text) - LONGEST_TEXT:,} more characters are not shown.</p>"
    return f"<pre>{escape(text[:LONGEST_TEXT])}</pre>{note}"


def _name(name: str) -> str:
    return escape(_cut(name, LONGEST_NAME))


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[:longest]}… ({len(text) - longest:,} more characters)"
