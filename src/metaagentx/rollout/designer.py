"""Task to script: what the Designer is asked, and what is made of its reply.

In training the prompt is short: one system line and the question. The Designer has learned the language in the cold
start, from a teacher that saw the long prompt with the manual and the examples.
"""

from functools import lru_cache

from ..policy import ContextOverflow
from ..types import Call, Design, Fault, Role, Task
from ..workflow.manual import language_manual
from ..workflow.reply import DESIGN_REQUEST, DESIGNER_LINE, parse_reply
from ..workflow.structure import MAX_CALLS
from ..workflow.validate import validate
from .sampling import RoleSampler, SamplingFailed


def design_messages(task: Task, manual: bool = False, calls: int = MAX_CALLS) -> list[dict[str, str]]:
    """Return what the Designer reads; with the manual for a teacher that has not learned the language."""
    system = f"{DESIGNER_LINE}\n\n{language_manual(calls)}" if manual else DESIGNER_LINE
    return [{"role": "system", "content": system}, {"role": "user", "content": DESIGN_REQUEST + task.question}]


async def write_script(
    task: Task, sampler: RoleSampler, seed: int, manual: bool = False, calls: int = MAX_CALLS
) -> Design:
    """Return one design: its script, if the reply holds one that may run, or else the fault.

    `calls` is how many model calls an execution may make, which the manual tells.
    """
    messages = design_messages(task, manual, calls)
    try:
        call = await sampler.call("Designer", messages, seed)
    except ContextOverflow as error:
        return _nothing(messages, Fault("context", str(error)))
    except SamplingFailed as error:
        return _nothing(messages, Fault("infra", str(error)))
    return read_design(call)


def read_design(call: Call) -> Design:
    """Return the design that a reply holds."""
    reply = parse_reply(call.text)
    if reply.script is None:
        return Design(call, None, fault=Fault("no_script", reply.problem or "there is no script"))
    if problem := _problem_of(reply.script):
        return Design(call, reply.script, fault=Fault("invalid_script", problem))
    return Design(call, reply.script)


@lru_cache(256)  # a Designer writes the same script for many tasks
def _problem_of(script: str) -> str | None:
    """Return why a script must not run, in a line."""
    problems = validate(script)
    return str(problems[0]) if problems else None


def _nothing(messages: list[dict[str, str]], fault: Fault) -> Design:
    return Design(Call(Role.DESIGNER, "Designer", tuple(messages), ""), None, fault=fault)
