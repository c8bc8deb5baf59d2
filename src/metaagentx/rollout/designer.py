"""Task to script: what the Designer is asked, and what is made of its reply.

In training the prompt is short: one system line and the question, as `[prompts]` of the recipe has them. The Designer
has learned the language in the cold start, from a teacher that saw the long prompt with the manual and the examples.
"""

from functools import lru_cache

from ..config import PromptsConfig, RolloutConfig
from ..policy import ContextOverflow
from ..types import Call, Design, Fault, Role, Task
from ..workflow.manual import language_manual
from ..workflow.reply import parse_reply
from ..workflow.structure import MAX_CALLS
from ..workflow.validate import validate
from .sampling import RoleSampler, SamplingFailed

DEFAULT_PROMPTS = PromptsConfig()


def design_messages(
    task: Task, prompts: PromptsConfig = DEFAULT_PROMPTS, manual: bool = False, calls: int = MAX_CALLS
) -> list[dict[str, str]]:
    """Return what the Designer reads; with the manual for a teacher that has not learned the language.

    `calls` is how many model calls an execution may make, which the manual tells.
    """
    parts = [prompts.designer_system, language_manual(calls, prompts.agent_instruction) if manual else ""]
    system = "\n\n".join(part for part in parts if part)
    request = {"role": "user", "content": prompts.request(task.question)}
    return [{"role": "system", "content": system}, request] if system else [request]


async def write_script(
    task: Task,
    sampler: RoleSampler,
    seed: int,
    rollout: RolloutConfig,
    prompts: PromptsConfig = DEFAULT_PROMPTS,
    manual: bool = False,
) -> Design:
    """Return one design: its script, if the reply holds one that may run, or else the fault."""
    messages = design_messages(task, prompts, manual, rollout.calls)
    try:
        call = await sampler.call("Designer", messages, seed)
    except ContextOverflow as error:
        return _nothing(messages, Fault("context", str(error)))
    except SamplingFailed as error:
        return _nothing(messages, Fault("infra", str(error)))
    return read_design(call, rollout.lenient)


def read_design(call: Call, lenient: bool = False) -> Design:
    """Return the design that a reply holds; `lenient` is the dialect of its script."""
    reply = parse_reply(call.text)
    if reply.script is None:
        return Design(call, None, fault=Fault("no_script", reply.problem or "there is no script"))
    if problem := _problem_of(reply.script, lenient):
        return Design(call, reply.script, fault=Fault("invalid_script", problem))
    return Design(call, reply.script)


@lru_cache(256)  # a Designer writes the same script for many tasks
def _problem_of(script: str, lenient: bool) -> str | None:
    """Return why a script must not run, in a line."""
    problems = validate(script, lenient)
    return str(problems[0]) if problems else None


def _nothing(messages: list[dict[str, str]], fault: Fault) -> Design:
    return Design(Call(Role.DESIGNER, "Designer", tuple(messages), ""), None, fault=fault)
