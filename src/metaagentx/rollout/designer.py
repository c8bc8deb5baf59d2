"""Task to script: what the Designer is asked, and what is made of its reply.

In training the prompt is short: one system line and the question, as `[prompts]` of the recipe has them. The Designer
has learned the language in the cold start, from a teacher that saw the long prompt with the manual and the examples.
"""

from collections.abc import Sequence
from functools import lru_cache

from ..config import PromptsConfig, RolloutConfig
from ..policy import ContextOverflow, PromptRejected
from ..tools import ToolSpec
from ..types import Call, Design, Fault, Role, Task
from ..workflow.manual import language_manual
from ..workflow.reply import parse_reply
from ..workflow.structure import MAX_CALLS
from ..workflow.tools import describe_offered
from ..workflow.validate import validate
from .sampling import RoleSampler, SamplingFailed

DEFAULT_PROMPTS = PromptsConfig()
_OFFERED = 'Tools that agents can be given: from workflow import tools, then tool_registry=tools.use("NAME").'


def design_messages(
    task: Task,
    prompts: PromptsConfig = DEFAULT_PROMPTS,
    manual: bool = False,
    calls: int = MAX_CALLS,
    tools: Sequence[ToolSpec] = (),
) -> list[dict[str, str]]:
    """Return what the Designer reads; with the manual for a teacher that has not learned the language.

    `calls` is how many model calls an execution may make, which the manual tells. `tools` are listed in the request.
    """
    told = language_manual(calls, prompts.agent_instruction, bool(tools)) if manual else ""
    system = "\n\n".join(part for part in (prompts.designer_system, told) if part)
    content = prompts.request(task.question)
    if tools:
        content += "\n\n" + "\n".join([_OFFERED, *describe_offered(tool.to_json() for tool in tools)])
    request = {"role": "user", "content": content}
    return [{"role": "system", "content": system}, request] if system else [request]


async def write_script(  # noqa: PLR0913, PLR0917  as for `run_script`
    task: Task,
    sampler: RoleSampler,
    seed: int,
    rollout: RolloutConfig,
    prompts: PromptsConfig = DEFAULT_PROMPTS,
    manual: bool = False,
    tools: Sequence[ToolSpec] = (),
) -> Design:
    """Return one design: its script, if the reply holds one that may run, or else the fault."""
    messages = design_messages(task, prompts, manual, rollout.calls, tools)
    try:
        call = await sampler.call("Designer", messages, seed)
    except ContextOverflow as error:
        return _nothing(messages, Fault("context", str(error)))
    except (SamplingFailed, PromptRejected) as error:
        return _nothing(messages, Fault("infra", str(error)))
    return read_design(call, rollout.lenient, bool(tools))


def read_design(call: Call, lenient: bool = False, tools: bool = False) -> Design:
    """Return the design that a reply holds; `lenient` is the dialect of its script, `tools`: some are offered."""
    reply = parse_reply(call.text)
    if reply.script is None:
        return Design(call, None, fault=Fault("no_script", reply.problem or "there is no script"))
    if problem := _problem_of(reply.script, lenient, tools):
        return Design(call, reply.script, fault=Fault("invalid_script", problem))
    return Design(call, reply.script)


@lru_cache(256)  # a Designer writes the same script for many tasks
def _problem_of(script: str, lenient: bool, tools: bool) -> str | None:
    """Return why a script must not run, in a line."""
    problems = validate(script, lenient, tools)
    return str(problems[0]) if problems else None


def _nothing(messages: list[dict[str, str]], fault: Fault) -> Design:
    return Design(Call(Role.DESIGNER, "Designer", tuple(messages), ""), None, fault=fault)
