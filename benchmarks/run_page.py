"""A page section about one run of the quickstart: python -m benchmarks.run_page DIR [--write PAGE].

DIR is a quickstart's directory, such as runs/smollm2. Prints Markdown: how long the parts of training took, what the
methods solve, how designs and weights changed, and three trees of the run, as they were sampled. With `--write` it goes
between the page's marks of that directory's name, and the learning curve into an SVG file beside the page.
"""

import argparse
import sys
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from statistics import fmean

from safetensors import safe_open

from benchmarks.claim_pages import replace_between
from benchmarks.drawing import share_charts
from metaagentx.atomic import atomic_write
from metaagentx.errors import MetaAgentXError
from metaagentx.evaluation.result import Evaluation
from metaagentx.runs import Run, evaluation_directory
from metaagentx.system.models import load_run_recipe
from metaagentx.types import Design, Execution, Role, Rollout

FIRST, LAST = "first", "last"
SHOWN = 400
"""Characters of a message that a tree shows."""


def section(directory: Path, picture: str) -> str:
    """Return the section about a quickstart; `picture` is the name of the file with its learning curve."""
    run = Run.open(directory / "run")
    result = Evaluation.read(evaluation_directory(run.directory, run.next_step) / "evaluation.json")
    parts = [
        _times(run),
        f"![Share of training executions that solve their task, step by step]({picture})",
        *result.to_markdown().split("\n\n## ", 2)[1].split("\n\n")[1:],
        "Designs by kind, % of those that can run, in the first and in the last steps of training:",
        _shares(run),
        "Norm of what the LoRA of each role adds to the matrices of the cold start, 0 before RL:",
        _weights(run),
        "Three trees of the training run, each with its first design and the first execution of that design: the first "
        "tree that was saved, and of the last ones a tree with the tool and a tree without it that solve their task.",
        *(_tree(run, *chosen) for chosen in _choose(run)),
    ]
    return "\n\n".join(parts) + "\n"


def curve(directory: Path) -> str:
    """Return the share of executions that solve their task, step by step, as a picture."""
    metrics = Run.open(directory / "run").metrics()
    lines = {name: [(_number(line["step"]), _number(line[key])) for line in metrics if key in line]
             for name, key in (("executions solved", "solved"), ("designs that can run", "designs/valid"))}  # fmt: skip
    return share_charts([("Training executions that solve their task, and designs that can run", lines)])


def _times(run: Run) -> str:
    lines = run.metrics()
    total = {name: sum(_number(line[f"seconds/{name}"]) for line in lines) for name in ("step", "rollout", "update")}
    executions = sum(_number(line["executions/count"]) for line in lines)
    return (
        f"{len(lines)} steps, {executions:.0f} executions, {total['step'] / 60:.0f} minutes of RL: "
        f"{total['rollout'] / len(lines):.0f} s of rollout and {total['update'] / len(lines):.0f} s of update a step."
    )


def _shares(run: Run) -> str:
    lines = run.metrics()
    count = max(1, len(lines) // 8)
    ends = {f"{FIRST} {count} steps": lines[:count], f"{LAST} {count} steps": lines[-count:]}
    kinds = sorted({key for line in chain(*ends.values()) for key in line if key.startswith("pattern/")})
    rows = [
        [
            kind.removeprefix("pattern/"),
            *(f"{100 * fmean(_number(line.get(kind, 0.0)) for line in part):.0f}" for part in ends.values()),
        ]
        for kind in kinds
    ]
    return _table(["kind", *ends], rows)


def _weights(run: Run) -> str:
    """Return the norms of the LoRAs of the last checkpoint; LoRAs start as zero."""
    checkpoint = run.checkpoint_at(run.next_step)
    model = load_run_recipe(run, []).config.model
    scale = model.lora_alpha / model.lora_rank if model.lora_rank else 0.0
    rows = []
    for role in Role:
        path = checkpoint / role / "adapter_model.safetensors"
        if not path.exists():
            raise MetaAgentXError(f"{path} is missing: this page is about runs with a LoRA for each role")
        with safe_open(path, "pt") as lora:
            names = [name for name in lora.keys() if "lora_A" in name]  # noqa: SIM118
            squares = 0.0
            for name in names:
                product = scale * lora.get_tensor(name.replace("lora_A", "lora_B")) @ lora.get_tensor(name)
                squares += float(product.square().sum())
        rows.append([str(role), f"{squares**0.5:.3f}", str(len(names))])
    return _table(["role", "norm of the change over all matrices", "matrices"], rows)


def _choose(run: Run) -> list[tuple[int, Rollout]]:
    """Return a tree of the first saved step, and from the last ones a tree with the tool and a tree without it."""
    steps = [step for step in range(run.next_step) if (run.directory / "rollouts" / f"{step:06d}.jsonl").exists()]
    chosen = [(steps[0], run.rollouts(steps[0])[0])]
    for with_tool in (True, False):
        for step in reversed(steps):
            found = [tree for tree in run.rollouts(step) if _fits(tree, with_tool)]
            if found:
                chosen.append((step, found[0]))
                break
    return chosen


def _fits(tree: Rollout, with_tool: bool) -> bool:
    first = _first_design(tree)
    solved = bool(first.executions and first.executions[0].reward and first.executions[0].reward.solved)
    return solved and ("register_python" in (first.script or "")) == with_tool


def _first_design(tree: Rollout) -> Design:
    return next((design for design in tree.designs if design.executions), tree.designs[0])


def _tree(run: Run, step: int, tree: Rollout) -> str:
    design = _first_design(tree)
    rewards = " / ".join(
        "-" if each.reward is None else ("solved" if each.reward.solved else "not solved")
        for other in tree.designs
        for each in other.executions[:1]
    )
    lines = [f"**Step {step + 1}, {tree.task.source.partition('?')[0]}.** First execution of each design: {rewards}."]
    lines += ["", "```text", _cut(tree.task.question), "```", "", "```text", (design.script or "").strip(), "```"]
    for execution in design.executions[:1]:
        lines += ["", "```text", *_calls(execution), "```"]
    return "\n".join(lines)


def _calls(execution: Execution) -> list[str]:
    lines = [f"{call.agent}: {_cut(call.text)}" for call in execution.calls]
    outputs = {program.call: program.output.strip() for program in execution.programs}
    lines = [line + (f"\n  output: {outputs[index]}" if index in outputs else "") for index, line in enumerate(lines)]
    end = (
        execution.fault.kind
        if execution.fault
        else ("solved" if execution.reward and execution.reward.solved else "not solved")
    )
    return [*lines, f"-> {end}"]


def _cut(text: str) -> str:
    text = text.strip().replace("```", "'''")
    return text if len(text) <= SHOWN else f"{text[:SHOWN]} ..."


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    rule = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join("| " + " | ".join(line) + " |" for line in (head, rule, *rows))


def _number(value: object) -> float:
    assert isinstance(value, (int, float))
    return float(value)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, help="the directory of a quickstart")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="the page with the marks")
    given = parser.parse_args()
    name = given.directory.resolve().name
    try:
        text = section(given.directory, f"{name}.svg")
        if given.write:
            replace_between(given.write, (f"<!-- {name} -->\n", f"<!-- end of {name} -->"), text)
            atomic_write(given.write.with_name(f"{name}.svg"), curve(given.directory).encode())
        else:
            print(text)
    except MetaAgentXError as error:
        print(error, file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
