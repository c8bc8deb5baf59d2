"""Rollouts as JSON, one a line: what a person or a viewer wants of the tree, without tokens and log-probabilities.

A rollout that was read back equals the one that was written, but for `Call.prompt`, `completion` and `logprobs`, which
are empty. What is not a rollout of ours is refused with one line that says where and why. Fields we do not know are
left aside, so that a later version may add some.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, cast

from ..errors import MetaAgentXError
from ..types import (
    JSON,
    AssertTest,
    Call,
    CodeTest,
    CodeTests,
    CustomGrader,
    Design,
    Execution,
    Fault,
    FunctionTest,
    Grading,
    GymEntry,
    MathGold,
    ProgramOutput,
    Reward,
    Role,
    Rollout,
    StdinTest,
    Task,
)
from .records import read_lines


def read_rollouts(path: Path) -> list[Rollout]:
    """All rollouts of a file."""
    rollouts = []
    for number, line in enumerate(read_lines(path), start=1):
        try:
            rollouts.append(rollout_from_json(line))
        except MetaAgentXError as error:
            raise MetaAgentXError(f"{path}, line {number}: {error}") from error
    return rollouts


def rollout_to_json(rollout: Rollout) -> dict[str, JSON]:
    """The tree with its texts, rewards, advantages, faults and timings; of tokens only how many there were."""
    return {"task": _plain(rollout.task), "designs": [_design(design) for design in rollout.designs]}


def rollout_from_json(data: dict[str, JSON]) -> Rollout:
    """The tree again. What is missing or of the wrong type is named."""
    rollout = _Object("a rollout", data)
    designs = [_read_design(design) for design in rollout.children("designs", "a design")]
    return Rollout(_read_task(rollout.child("task", "a task")), designs)


def _plain(value: Task | Fault | Reward | None) -> JSON:
    """All fields under their names, tuples as lists. Not the file of a task: the run may be moved away from it."""
    if value is None:
        return None
    return asdict(
        value,
        dict_factory=lambda fields: {k: list(v) if isinstance(v, tuple) else v for k, v in fields if k != "file"},
    )


def _design(design: Design) -> JSON:
    return {
        "call": _call(design.call),
        "script": design.script,
        "pattern": design.pattern,
        "fault": _plain(design.fault),
        "reward": design.reward,
        "executions": [_execution(execution) for execution in design.executions],
    }


def _execution(execution: Execution) -> JSON:
    return {
        "calls": [_call(call) for call in execution.calls],
        "answer": execution.answer,
        "answer_call": execution.answer_call,
        "fault": _plain(execution.fault),
        "reward": _plain(execution.reward),
        "fed": execution.fed,
        "programs": [{"call": program.call, "output": program.output} for program in execution.programs],
        "log": execution.log,
        "seconds": execution.seconds,
    }


def _call(call: Call) -> JSON:
    return {
        "role": call.role.value,
        "agent": call.agent,
        "messages": [{**message} for message in call.messages],
        "text": call.text,
        "prompt_tokens": len(call.prompt),
        "tokens": call.tokens,
        "finish": call.finish,
        "advantage": call.advantage,
        "seconds": call.seconds,
    }


def _read_task(task: "_Object") -> Task:
    kind = task.text("kind")
    if kind not in _READ_GRADING:
        raise task.wrong("kind", f"one of {', '.join(_READ_GRADING)}")
    return Task(
        id=task.text("id"),
        kind=cast(Literal["math", "code", "gym", "custom"], kind),
        question=task.text("question"),
        grading=_READ_GRADING[kind](task.child("grading", f"the grading of a {kind} task")),
        source=task.text("source"),
        split=task.text("split"),
        difficulty=task.number_or_none("difficulty"),
        licence=task.text("licence"),
    )


def _read_code(grading: "_Object") -> CodeTests:
    return CodeTests(
        tests=tuple(_read_test(test) for test in grading.children("tests", "a test")),
        entry_point=grading.text("entry_point"),
        prompt=grading.text("prompt"),
        cpu_seconds=grading.number("cpu_seconds"),
        wrapped_outputs=grading.flag("wrapped_outputs"),
        special_judge=grading.flag("special_judge"),
    )


def _read_test(test: "_Object") -> CodeTest:
    if "source" in test.fields:
        return AssertTest(test.text("source"))
    if "arguments" in test.fields:
        return FunctionTest(tuple(test.items("arguments")), test.get("expected"))
    return StdinTest(test.text("input"), test.text("output"))


def _read_gym(grading: "_Object") -> GymEntry:
    config, entry = grading.child("config", "config").fields, grading.child("entry", "entry").fields
    return GymEntry(grading.text("generator"), config, entry)


_READ_GRADING: dict[str, Callable[["_Object"], Grading]] = {
    "math": lambda gold: MathGold(gold.texts("answers"), gold.numbers("tolerances"), gold.text("unit")),
    "code": _read_code,
    "gym": _read_gym,
    "custom": lambda grader: CustomGrader(grader.text("function"), grader.get("data")),
}


def _read_design(design: "_Object") -> Design:
    return Design(
        call=_read_call(design.child("call", "the call of a design")),
        script=design.text_or_none("script"),
        executions=[_read_execution(execution) for execution in design.children("executions", "an execution")],
        fault=_read_fault(design),
        reward=design.number_or_none("reward"),
        pattern=design.text("pattern"),
    )


def _read_execution(execution: "_Object") -> Execution:
    answered = execution.get("answer_call") is not None
    # Runs of earlier versions have neither of these.
    fed = execution.text_or_none("fed") if "fed" in execution.fields else None
    programs = execution.children("programs", "a program") if "programs" in execution.fields else []
    return Execution(
        calls=[_read_call(call) for call in execution.children("calls", "a call")],
        answer=execution.text_or_none("answer"),
        answer_call=execution.whole("answer_call") if answered else None,
        fault=_read_fault(execution),
        reward=None if execution.get("reward") is None else _read_reward(execution.child("reward", "a reward")),
        fed=fed,
        programs=[ProgramOutput(program.whole("call"), program.text("output")) for program in programs],
        log=execution.text("log"),
        seconds=execution.number("seconds"),
    )


def _read_call(call: "_Object") -> Call:
    role = call.text("role")
    if role not in list(Role):
        raise call.wrong("role", f"one of {', '.join(Role)}")
    messages = call.children("messages", "a message")
    return Call(
        role=Role(role),
        agent=call.text("agent"),
        messages=tuple({name: message.text(name) for name in message.fields} for message in messages),
        text=call.text("text"),
        tokens=call.whole("tokens"),
        advantage=call.number_or_none("advantage"),
        finish=call.text("finish"),
        seconds=call.number("seconds"),
    )


def _read_fault(owner: "_Object") -> Fault | None:
    if owner.get("fault") is None:
        return None
    fault = owner.child("fault", "a fault")
    return Fault(fault.text("kind"), fault.text("message"))


def _read_reward(reward: "_Object") -> Reward:
    return Reward(
        outcome=reward.number("outcome"),
        solution=reward.number("solution"),
        delivery=reward.number("delivery"),
        cost=reward.number("cost"),
        total=reward.number("total"),
        solved=reward.flag("solved"),
        reason=reward.text("reason"),
    )


@dataclass(frozen=True, slots=True)
class _Object:
    """A JSON object whose fields are of the type that is asked for, or an error that names them."""

    what: str
    fields: dict[str, JSON]

    def get(self, name: str) -> JSON:
        if name not in self.fields:
            raise MetaAgentXError(f"{self.what} has no field {name}")
        return self.fields[name]

    def text(self, name: str) -> str:
        value = self.get(name)
        if not isinstance(value, str):
            raise self.wrong(name, "text")
        return value

    def text_or_none(self, name: str) -> str | None:
        return None if self.get(name) is None else self.text(name)

    def whole(self, name: str) -> int:
        value = self.get(name)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.wrong(name, "a whole number")
        return value

    def number(self, name: str) -> float:
        value = self.get(name)
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            raise self.wrong(name, "a number")
        return float(value)

    def number_or_none(self, name: str) -> float | None:
        return None if self.get(name) is None else self.number(name)

    def flag(self, name: str) -> bool:
        value = self.get(name)
        if not isinstance(value, bool):
            raise self.wrong(name, "true or false")
        return value

    def items(self, name: str) -> list[JSON]:
        value = self.get(name)
        if not isinstance(value, list):
            raise self.wrong(name, "a list")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        return tuple(_Object(self.what, {name: item}).text(name) for item in self.items(name))

    def numbers(self, name: str) -> tuple[float, ...]:
        return tuple(_Object(self.what, {name: item}).number(name) for item in self.items(name))

    def child(self, name: str, what: str) -> "_Object":
        value = self.get(name)
        if not isinstance(value, dict):
            raise self.wrong(name, "an object")
        return _Object(what, value)

    def children(self, name: str, what: str) -> "list[_Object]":
        return [_Object(self.what, {name: item}).child(name, what) for item in self.items(name)]

    def wrong(self, name: str, wanted: str) -> MetaAgentXError:
        return MetaAgentXError(f"{self.what} has a field {name} that is not {wanted}")
