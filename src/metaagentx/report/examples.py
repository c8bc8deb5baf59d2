"""Example trees as HTML: a task, its designs with their scripts, their executions and all messages.

Everything here was written by a model or by the author of a task: it is escaped, and cut where it is long. In the
prompts of agents, the parts that the script wrote are marked, and every part names its source.
"""

import json
from collections.abc import Sequence
from statistics import pstdev

from ..errors import MetaAgentXError
from ..evaluation.names import short_names
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
    """Return one tree of the first recorded step, of the middle one and of the last."""
    names = [path.stem for path in (run.directory / "rollouts").glob("*.jsonl")]
    steps = sorted(int(name) for name in names if name.isdecimal() and name.isascii())
    chosen = sorted({steps[0], steps[len(steps) // 2], steps[-1]}) if steps else []
    return [f"<h3>Step {step}</h3>{_example(run, step)}" for step in chosen]


def _example(run: Run, step: int) -> str:
    try:
        rollouts = [rollout for rollout in run.rollouts(step) if rollout.designs]
    except MetaAgentXError as error:  # damaged, or removed by a trainer that resumed: the other steps can be shown
        return f"<p class='missing'>{escape(str(error))}</p>"
    if not rollouts:
        return "<p class='missing'>No task of this step has a design.</p>"
    return tree(max(rollouts, key=_spread))


def _spread(rollout: Rollout) -> float:
    rewards = [e.reward.total for design in rollout.designs for e in design.executions if e.reward]
    rewards += [design.reward for design in rollout.designs if not design.executions and design.reward is not None]
    return pstdev(rewards) if len(rewards) > 1 else 0.0


def tree(rollout: Rollout) -> str:
    """Return a task with its designs."""
    task = rollout.task
    source = short_names([task.source])[task.source]
    best = max(rollout.designs, key=lambda design: -1e9 if design.reward is None else design.reward)
    designs = "".join(
        _design(design, index, task.question, is_open=design is best)
        for index, design in enumerate(rollout.designs, start=1)
    )
    answer = f"<p class='expected'>expected <code>{escape(_cut(expected(task), 300))}</code></p>"
    question = f"<div class='question'><span class='tag'>{_name(source)}</span>{_text(task.question)}{answer}</div>"
    return f"<div class='tree'>{question}<ol class='designs'>{designs}</ol></div>"


def expected(task: Task) -> str:
    """Return a description of a right answer, as far as the task has one."""
    grading = task.grading
    if isinstance(grading, MathGold):
        unit = f" {grading.unit}" if grading.unit else ""
        within = f", within {', '.join(map(number, grading.tolerances))}" if grading.tolerances else ""
        return f"{' and '.join(grading.answers)}{unit}{within}"
    if isinstance(grading, CodeTests):
        count = f"a program that passes {_count(len(grading.tests), 'test')}"
        return f"{count}, such as {_test(grading.tests[0], grading.entry_point)}" if grading.tests else count
    if isinstance(grading, GymEntry):
        answer = grading.entry.get("answer")
        return f"what {grading.generator} accepts" if answer is None else _plain(answer)
    return f"what {grading.function} accepts, with {_plain(grading.data)}"


def _test(test: CodeTest, entry_point: str) -> str:
    if isinstance(test, StdinTest):
        return f"{_plain(test.output.strip())} printed for {_plain(test.input.strip())}"
    if isinstance(test, FunctionTest):
        return f"{entry_point}({', '.join(map(json.dumps, test.arguments))}) = {json.dumps(test.expected)}"
    return test.source


def _plain(value: JSON) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _design(design: Design, index: int, question: str, is_open: bool) -> str:
    executions = design.executions
    head = [
        f"<b>Design {index}</b>",
        f"<span class='tag'>{_name(design.pattern or 'no pattern')}</span>",
        _figure("reward", design.reward),
        _figure("advantage", design.call.advantage, signed=True),
    ]
    if executions:
        solved = sum(execution.reward is not None and execution.reward.solved for execution in executions)
        head.append(f"<span class='figure'>{solved} of {len(executions)} solved</span>")
    source = f"<details><summary>what the Designer read and wrote</summary>{_conversation(design.call)}</details>"
    if design.script is not None:
        opened = " open" if is_open else ""
        source = f"<details{opened}><summary>script</summary>{_text(design.script)}</details>{source}"
    items = "".join(_execution(execution, position, question) for position, execution in enumerate(executions, start=1))
    return (
        f"<li class='design'><div class='head'>{''.join(head)}</div>{_fault(design.fault)}<div class='sides'>"
        f"<ol class='executions'>{items}</ol><div>{source}</div></div></li>"
    )


def _execution(execution: Execution, index: int, question: str) -> str:
    reward, calls = execution.reward, execution.calls
    solved = reward is not None and reward.solved
    answer = "no answer" if execution.answer is None else _cut(" ".join(execution.answer.text.split()), 120)
    head = [
        f"<span class='{'solved' if solved else 'unsolved'}'>{'✓ solved' if solved else '✗ not solved'}</span>",
        _figure("reward", reward.total if reward else None),
        _figure("advantage", next((call.advantage for call in calls if call.advantage is not None), None), signed=True),
        f"<code class='answer'>{escape(answer)}</code>",
        f"<span class='why'>grader: {escape(_cut(_verdict(execution), 300))}</span>",
    ]
    about = f"{_count(len(calls), 'call')}, {sum(call.tokens for call in calls)} tokens"
    prompts = Prompts(question, calls[:MOST_CALLS], execution.programs, execution.told).calls
    inside = "".join(_call(call, spans) for call, spans in zip(calls, prompts, strict=False))
    if len(calls) > MOST_CALLS:
        inside += f"<p class='missing'>{len(calls) - MOST_CALLS} more calls are not shown.</p>"
    title = f"<summary title='execution {index}: {about}'><span class='head'>{''.join(head)}</span></summary>"
    content = f"<p class='why'>Execution {index}: {about}</p>{inside}"
    return f"<li><details>{title}{content}</details>{_fed(execution)}{_fault(execution.fault)}</li>"


def _verdict(execution: Execution) -> str:
    """Return what the grader said about the answer."""
    reward = execution.reward
    if reward is None:
        return "was not asked"
    return reward.reason or ("accepts the answer" if reward.solved else "does not accept the answer")


def _fed(execution: Execution) -> str:
    """Return a note about a fed answer that was rewarded; if it was not, the fault says so."""
    if execution.fed is None or execution.fault is not None:
        return ""
    return f"<p class='fault'><b>fed</b> {escape(_cut(execution.fed, 500))}; the recipe rewards that</p>"


def _call(call: Call, spans: Sequence[Sequence[Span]]) -> str:
    cut = ", cut off at the limit" if call.finish == "length" else ""
    conversation = _conversation(call, [_marked(message) for message in spans])
    return f"<div class='call'><p><b>{_name(call.agent)}</b> {call.tokens} tokens{cut}</p>{conversation}</div>"


def _conversation(call: Call, prompts: Sequence[str] | None = None) -> str:
    """Return a call with the messages of its prompt, as HTML or as they are."""
    texts = [_text(message.get("content", "")) for message in call.messages] if prompts is None else prompts
    roles = [message.get("role", "") for message in call.messages]
    prompt = "".join(f"<p class='who'>{_name(role)}</p>{text}" for role, text in zip(roles, texts, strict=True))
    return f"{prompt}<p class='who'>reply</p><div class='reply'>{_text(call.text)}</div>"


def _marked(spans: Sequence[Span]) -> str:
    """Return a message with the source of each of its parts."""
    parts, room = [], LONGEST_TEXT
    for span in spans:
        if room <= 0:
            break
        text = escape(span.text[:room])
        if span.source == "script":
            parts.append(f"<mark title='written by the script'>{text}</mark>")
        else:
            parts.append(f"<span title='{_SOURCES[span.source].format(span.call)}'>{text}</span>")
        room -= len(span.text)
    return _pre("".join(parts), sum(len(span.text) for span in spans))


def _text(text: str) -> str:
    return _pre(escape(text[:LONGEST_TEXT]), len(text))


def _pre(content: str, length: int) -> str:
    """Return a text, and how much of its length is not shown."""
    left = length - LONGEST_TEXT
    note = f"<p class='missing'>{left:,} more characters are not shown.</p>" if left > 0 else ""
    return f"<pre>{content}</pre>{note}"


def _fault(fault: Fault | None) -> str:
    if fault is None:
        return ""
    return f"<p class='fault'><b>{_name(fault.kind)}</b> {escape(_cut(fault.message, 500))}</p>"


def _figure(name: str, value: float | None, signed: bool = False) -> str:
    text = "–" if value is None else f"{value:+z.2f}" if signed else number(value)
    return f"<span class='figure'>{name} <b>{text}</b></span>"


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"


def _name(name: str) -> str:
    return escape(_cut(name, LONGEST_NAME))


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[:longest]}… ({len(text) - longest:,} more characters)"
