r"""The language as a teacher model reads it: how to reply, how agents speak, the reference, the examples.

The reference comes from the docstrings and signatures of the public classes, the examples are the files the tests run.
`docs/language.md` is this text below a few lines for people: `python -m metaagentx.workflow.manual > docs/language.md`.
"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

from .flow import Flow
from .messages import Context, Message
from .node import WorkflowNode
from .protocol import INSTRUCTION
from .structure import MAX_AGENTS, MAX_CALLS
from .validate import CONSTRUCTORS, MAX_CHARACTERS, MAX_ROUNDS, MAX_TURNS, MODULES

EXAMPLES = Path(__file__).parent / "examples"
# Public to the other modules of the package, of no use to scripts; `use` is told where tools are offered.
_INTERNAL = ("process", "describe", "answer", "python_tool", "view", "fork", "from_reply", "use")

_REPLY = """\
# Designing a multi-agent workflow

You get a question. You do not answer it: you write a short Python script that builds a team of agents which will.
The same language model plays every agent; what makes them a team is who they are told to be, what they see, which
tools they have, and how their results are combined. Spend agents where they help: one good agent beats five confused
ones on an easy question, and a second opinion or a real computation pays off on a hard one.

## Your reply

Six labeled remarks, one or two sentences each, then the script:

```
Problem Type: what kind of question this is
Analysis: what makes it hard, and where a single agent would go wrong
Workflow Pattern: single agent, ensemble, reflection, debate, router, or a mixture
Reason: why this pattern suits this question
Agent Design: each agent, its task and its tools
Flow: who works first, who sees what, who has the last word
<code>
from workflow import AgentNode, Workflow
...
</code>
```

## The script

- `question` is there already, as a string. End with `result = workflow.run(question)` and `print(result.content)`.
- What counts is the answer in the message of the last `workflow.run`, and it has to come from an agent: do not solve
  the question yourself in the script, and do not put your guess of the answer into a prompt.
- It is run exactly as you write it. Prompts are plain Python strings: write `\\\\boxed{}` for \\boxed{}.
- Import from `workflow`, and from these modules: MODULE_LIST.
- No network, no threads, no asyncio: agents side by side run at the same time by themselves.
- At most LIMITS.
  `workflow.run` refuses a workflow that has more agents or could make more calls, before its first call.

## How agents speak

Each agent gets your `system_prompt`, then this:

> INSTRUCTION

It sees the question and what earlier agents delivered, each under the name of its agent, never their reasoning. So tell
an agent what its delivery should hold. An agent with tools may write a fenced python block, or a call in
`<tool_call></tool_call>`, and gets the output as its next turn.
"""

_OFFERED = """\
## Tools that are offered

The request lists tools that you can give to agents. They run outside the script, and an agent calls them in
`<tool_call></tool_call>`. Give each agent those that it needs:

```python
from workflow import AgentNode, tools

registry = tools.use("NAME", "ANOTHER_NAME")
agent = AgentNode("Researcher", "Find what the question needs.", tool_registry=registry)
```

- `tools.use(*names)`: return a ToolRegistry with these tools; a name that is not in the list is an error.
- `registry.use(*names)`: add them to a registry that has other tools, such as python.
"""

_FOR_PEOPLE = """\
# The workflow language

The text below the line is the manual as a teacher model reads it. Each example is a file that you can run:

```sh
python -m metaagentx.workflow src/metaagentx/workflow/examples/debate.py --question "What is 2 + 2?"
python -m metaagentx.workflow src/metaagentx/workflow/examples/debate.py --question "What is 2 + 2?" --reply '<delivery>\\boxed{4}</delivery>'
```

The command prints the conversation and the answer.

- `--reply TEXT` is the reply to one call. Give it once for each call; the last one repeats.
- `--lenient` ignores unknown keyword arguments of nodes, with a note, as `rollout.dialect = "lenient"` in a recipe does.
- `--base-url URL --model NAME` lets a model on an OpenAI-compatible server reply instead.
- **The command runs the script without the sandbox**, with your files and your network. Use it only for your own scripts.
- The package `workflow` exists under this command and in the sandbox. Plain `python script.py` does not have it.

---

"""  # noqa: E501  a command stays on its line


def language_page() -> str:
    """Return the text of `docs/language.md`."""
    return _FOR_PEOPLE + language_manual()


def language_manual(calls: int = MAX_CALLS, instruction: str = INSTRUCTION, tools: bool = False) -> str:
    """Return the whole manual, as Markdown, for executions that may make at most `calls` model calls.

    `instruction` is what every agent is told. `tools` says whether the operator offers any.
    """
    parts = [_introduction(calls, instruction), *([_OFFERED] if tools else []), _reference(), _examples()]
    return "\n".join(parts)


def _introduction(calls: int, instruction: str) -> str:
    bounds = (
        f"{MAX_CHARACTERS} characters, {MAX_AGENTS} agents, max_turns {MAX_TURNS}, "
        f"{MAX_ROUNDS} rounds or iterations, {calls} model calls in the worst case"
    )
    modules = ", ".join(sorted(MODULES - {"workflow", "__future__"}))
    text = _REPLY.replace("MODULE_LIST", modules).replace("LIMITS", bounds)
    return text.replace("INSTRUCTION", instruction.replace("\n", "\n> "))


def _reference() -> str:
    parts = ["## Reference\n"]
    parts += [_class_reference(cls) for cls in CONSTRUCTORS.values()]
    parts += [_class_reference(cls) for cls in (Message, Context, WorkflowNode)]
    return "\n".join(parts)


def _class_reference(cls: type) -> str:
    signature = "" if cls is Context else _plain_signature(cls)
    lines = [f"### `{cls.__name__}{signature}`\n", inspect.getdoc(cls) or "", ""]
    inherited = vars(Flow) if Flow in cls.__bases__ else {}
    for name, member in {**inherited, **vars(cls)}.items():
        if name.startswith("_") or name in _INTERNAL or not member.__doc__:
            continue
        if inspect.isfunction(member):
            summary = " ".join(inspect.cleandoc(member.__doc__).split())
            lines.append(f"- `{name}{_plain_signature(member)}`: {summary}")
        elif isinstance(member, property):
            lines.append(f"- `{name}`: {inspect.cleandoc(member.__doc__)}")
    return "\n".join(lines).rstrip() + "\n"


def _plain_signature(function: type | object) -> str:
    """Return a signature without `self` and annotations."""
    assert callable(function)
    parameters = [p.replace(annotation=p.empty) for p in inspect.signature(function).parameters.values()]
    shown = [str(p) for p in parameters if p.name != "self"]
    return f"({', '.join(shown)})"


def _examples() -> str:
    parts = ["## Examples\n"]
    for path in sorted(EXAMPLES.glob("*.py")):
        script = path.read_text(encoding="utf-8")
        parts.append(f"### {path.stem}\n\n```python\n{script.rstrip()}\n```\n")
    return "\n".join(parts)


if __name__ == "__main__":
    sys.stdout.write(language_page())
