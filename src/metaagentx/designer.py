"""Task to script: what the Designer is asked, and what is made of its reply.

In training the prompt is short: one system line and the question. What the Designer knows of the language it has
learnt, in the cold start, from a teacher that saw the long prompt with the manual and the examples.
"""

from functools import lru_cache

from .calls import Speaker, TooLong, Unanswered
from .types import Call, Design, Fault, Role, Task
from .workflow.manual import language_manual
from .workflow.reply import DESIGN_REQUEST, DESIGNER_LINE, parse_reply
from .workflow.structure import classify
from .workflow.validate import MAX_CALLS, Limits, validate


def design_messages(task: Task, manual: bool = False, calls: int = MAX_CALLS) -> list[dict[str, str]]:
    """What the Designer reads; with the manual for a teacher that has not learned the language."""
    system = f"{DESIGNER_LINE}\n\n{language_manual(calls)}" if manual else DESIGNER_LINE
    return [{"role": "system", "content": system}, {"role": "user", "content": DESIGN_REQUEST + task.question}]


async def write_script(task: Task, speaker: Speaker, seed: int, manual: bool = False, calls: int = MAX_CALLS) -> Design:
    """Return one design: its script, if the reply holds one that may run, or else the fault.

    `calls` is how many model calls an execution may make: a script that can need more is refused before it runs.
    """
    messages = design_messages(task, manual, calls)
    try:
        call = await speaker.call("Designer", messages, seed)
    except TooLong as error:
        return _nothing(messages, Fault("context", str(error)))
    except Unanswered as error:
        return _nothing(messages, Fault("infra", str(error)))
    return read_design(call, calls)


def read_design(call: Call, calls: int = MAX_CALLS) -> Design:
    """What a reply is as a design."""
    reply = parse_reply(call.text)
    if reply.script is None:
        return Design(call, None, fault=Fault("no_script", reply.problem or "there is no script"))
    if problem := _problem_of(reply.script, calls):
        return Design(call, reply.script, fault=Fault("invalid_script", problem))
    return Design(call, reply.script, pattern=pattern_of(reply.script))


@lru_cache(256)  # a Designer writes the same script for many tasks
def _problem_of(script: str, calls: int) -> str | None:
    """Why it should not run, in a line."""
    problems = validate(script, Limits(calls=calls))
    return str(problems[0]) if problems else None


@lru_cache(256)
def pattern_of(script: str) -> str:
    """A word for the kind of workflow: `single`, `ensemble`, ..., with `+tools` where an agent has some."""
    structure = classify(script)
    return structure.kind + ("+tools" if any(agent.tools for agent in structure.agents) else "")


def _nothing(messages: list[dict[str, str]], fault: Fault) -> Design:
    return Design(Call(Role.DESIGNER, "Designer", tuple(messages), ""), None, fault=fault)
