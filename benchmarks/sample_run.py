"""Made-up runs for the viewer: trees of any size that look like those of a training, written with the real code."""

import math
import random
from collections.abc import Iterator
from pathlib import Path

from metaagentx.runs import Run
from metaagentx.types import (
    Call,
    Design,
    Execution,
    Fault,
    FinalAnswer,
    MathGold,
    ProgramOutput,
    Reward,
    Role,
    Rollout,
    Task,
    ToolCall,
)
from metaagentx.workflow.structure import Structure, StructureNode

CONFIG = """
seed = {seed}
steps = {steps}
stages = [{{ steps = 10, executor = 2e-4 }}, {{ steps = 10, designer = 2e-4 }}]
[model]
path = "models/small"
[tasks]
train = "0.5*gym:products?min_digits=2 + 0.5*gsm8k"
"""
WORDS = [
    "let",
    "us",
    "see",
    "the",
    "sum",
    "of",
    "both",
    "numbers",
    "is",
    "then",
    "twice",
    "as",
    "large",
    "so",
    "we",
    "add",
    "seven",
    "and",
    "check",
    "it",
    "again",
]
SOURCES = ("gym:products?min_digits=2", "gsm8k")
STARTED = 1_700_000_000.0
SCRIPTS = {
    "single": """from workflow import AgentNode, Workflow

# One agent is enough for this.
solver = AgentNode(name="Solver", system_prompt="Solve the task. Give only the result as your final answer.")
workflow = Workflow(name="single")
workflow.add_node(solver)
print(workflow.run(question).content)
""",
    "ensemble": """from workflow import AgentNode, Workflow
from workflow.nodes import EnsembleNode

members = [AgentNode(name=name, system_prompt="Solve it.") for name in ("Algebra", "Cases", "Backward")]
judge = AgentNode(name="Judge", system_prompt="Decide which answer is right.")
workflow = Workflow(name="vote")
workflow.add_node(EnsembleNode(name="vote", agents=members, strategy="consensus", consensus_agent=judge))
print(workflow.run(question).content)
""",
    "reflection+tools": """from workflow import AgentNode, ToolRegistry, Workflow
from workflow.nodes import ReflectionNode

tools = ToolRegistry()
tools.register_python()
solver = AgentNode(name="Solver", system_prompt="Solve it with Python.", tool_registry=tools, max_turns=3)
critic = AgentNode(name="Critic", system_prompt="Say CORRECT or INCORRECT.")
workflow = Workflow(name="reflect")
workflow.add_node(ReflectionNode(name="refine", agent=solver, critic_agent=critic, num_iterations=2))
print(workflow.run(question).content)
""",
}
STRUCTURES = {
    "single": Structure("single", (StructureNode("sequence", "single", (1,)), StructureNode("agent", "Solver"))),
    "ensemble": Structure(
        "ensemble",
        (
            StructureNode("sequence", "vote", (1,)),
            StructureNode("ensemble", "vote", (2, 3, 4, 5)),
            *(StructureNode("agent", name) for name in ("Algebra", "Cases", "Backward", "Judge")),
        ),
        ((2, 5), (3, 5), (4, 5)),
    ),
    "reflection+tools": Structure(
        "reflection+tools",
        (
            StructureNode("sequence", "reflect", (1,)),
            StructureNode("reflection", "refine", (2, 3), rounds=2),
            StructureNode("agent", "Solver", (), ("python",), 3),
            StructureNode("agent", "Critic"),
        ),
        ((2, 3), (3, 2)),
    ),
}
AGENTS = {
    "single": (("Solver",),),
    "ensemble": (("Algebra", "Cases", "Backward"), ("Judge",)),
    "reflection+tools": (("Solver",), ("Critic",), ("Solver",)),
}
FAULTS = (
    Fault("script_error", "line 4: ZeroDivisionError: division by zero"),
    Fault("no_answer", "the script ended without an answer: no workflow was run to its end"),
    Fault("infra", "the sandbox did not start"),
)


def write_run(  # noqa: PLR0913
    directory: Path,
    steps: int,
    tasks: int = 4,
    designs: int = 4,
    executions: int = 4,
    *,
    words: int = 30,
    seed: int = 0,
) -> Path:
    """Write a run of this size and return its directory."""
    with Run.create(directory, CONFIG.format(seed=seed, steps=max(1, steps)), "sample") as run:
        run.log("training from step 0")
        for step in range(steps):
            add_step(run, step, tasks, designs, executions, words, seed)
        if steps:
            run.mark_best(steps, 0.4)
    return directory


def add_step(run: Run, step: int, tasks: int, designs: int, executions: int, words: int, seed: int) -> None:  # noqa: PLR0913, PLR0917
    """Write the next step of a run that was entered."""
    chance = random.Random(f"{seed} {step}")
    trees = [a_tree(chance, step, number, designs, executions, words) for number in range(tasks)]
    run.write_step(step, metrics_of(step, seed), trees)


def metrics_of(step: int, seed: int = 0) -> dict[str, float]:
    """Return all that a step measures, as functions of its number and some noise."""
    chance = random.Random(f"metrics {seed} {step}")
    role = "executor" if step // 10 % 2 == 0 else "designer"
    up = (1 - math.exp(-step / 40)) * 0.9

    def near(value: float) -> float:
        return max(0.0, value + chance.uniform(-0.08, 0.08))

    shares = {"single": 1.2 - up, "ensemble": 0.3 + up, "reflection+tools": 0.2 + up / 2}
    total = sum(shares.values())
    metrics = {f"pattern/{name}": share / total for name, share in shares.items()}
    metrics |= {
        f"reward/{name}": near(0.3 + up) for name in ("executor", "designer", "outcome", "solution", "delivery")
    }
    metrics |= {"reward/cost": 0.02, "solved": min(1.0, near(up)), **{f"solved/{name}": near(up) for name in SOURCES}}
    metrics |= {f"{role}/{name}": near(0.2) for name in ("entropy", "approx_kl", "clip_share", "grad_norm", "loss")}
    metrics |= {f"spread/{name}": near(0.3) for name in ("between", "within")}
    metrics |= {f"designs/{name}": min(1.0, near(0.85)) for name in ("valid", "distinct", "entropy")}
    metrics |= {
        f"{name}": near(0.4) for name in ("groups/designer_flat", "groups/executor_flat", "advantage/executor_abs")
    }
    metrics |= {"faults/designs": near(0.1), "faults/executions": near(0.05), "faults/infra": 0.0, "replies/cut": 0.01}
    metrics |= {"tokens/per_execution": near(3) * 90, "tokens/per_design": 90.0, "calls/per_execution": near(2.5)}
    metrics |= {"seconds/rollout": near(2), "seconds/update": near(0.5), "seconds/step": 2.7, "seconds/execution": 1.0}
    if step % 3 == 0:
        metrics["faults/no_script"] = 2.0
    if step % 10 == 9:
        metrics |= {"evaluation/solved": up * 0.8, "seconds/evaluation": 1.0}
    return {**metrics, f"learning_rate/{role}": 2e-4}


def a_tree(chance: random.Random, step: int, number: int, designs: int, executions: int, words: int) -> Rollout:
    """Return the tree of a task. A task comes again every twenty steps."""
    left, right = 10 + step % 20, 13 + number
    question = f"What is {left} * {right}?"
    task = Task(f"task-{left}-{right}", "math", question, MathGold((str(left * right),)), SOURCES[number % 2], "train")
    made = [a_design(chance, task, step, executions, words) for _ in range(designs)]
    mean = sum(design.reward or 0.0 for design in made) / len(made)
    for design in made:
        design.call.advantage = round((design.reward or 0.0) - mean, 3)
    return Rollout(task, made)


def a_design(chance: random.Random, task: Task, step: int, executions: int, words: int) -> Design:
    """Return a design with its executions, or one without a script."""
    asked = (
        {"role": "system", "content": "You design multi-agent systems."},
        {"role": "user", "content": f"Design Multi Agent System for the Question: {task.question}"},
    )
    pattern = chance.choices(list(SCRIPTS), (3, 1 + step / 20, 1 + step / 30))[0]
    script = SCRIPTS[pattern]
    text = f"Problem Type: arithmetic\nWorkflow Pattern: {pattern}\n<code>\n{script}</code>"
    call = a_call(chance, "Designer", asked, text, Role.DESIGNER, STARTED + 60 * step)
    if chance.random() < 0.06:
        fault = Fault("invalid_script", "line 4, column 0: AgentNode has no argument prompt")
        return Design(call, script, fault=fault, reward=0.0)
    runs = [an_execution(chance, task, pattern, step, words) for _ in range(executions)]
    scored = [run.reward.total for run in runs if run.reward]
    return Design(call, script, runs, reward=sum(scored) / len(scored) if scored else None, pattern=pattern)


def an_execution(chance: random.Random, task: Task, pattern: str, step: int, words: int) -> Execution:
    """Return an execution of a pattern: its agents in turn, those of a group side by side."""
    execution = Execution(structure=STRUCTURES[pattern], started=STARTED + 60 * step + 5)
    clock, heard = execution.started + 0.02, ""
    gold = task.grading.answers[0] if isinstance(task.grading, MathGold) else ""
    right = chance.random() < 0.3 + 0.5 * (1 - math.exp(-step / 40))
    for group in AGENTS[pattern]:
        ends, said = [], []
        for agent in group:
            value = gold if right else str(chance.randint(100, 999))
            text = f"{' '.join(chance.choices(WORDS, k=words))}.\n<delivery>\\boxed{{{value}}}</delivery>"
            asked = (
                {"role": "system", "content": f"You are {agent}. Hand on your result once."},
                {"role": "user", "content": task.question + heard},
            )
            execution.calls.append(a_call(chance, agent, asked, text, Role.EXECUTOR, clock + chance.random() / 50))
            ends.append(execution.calls[-1].started + execution.calls[-1].seconds)
            said.append(f"\n\nFrom {agent}:\n\\boxed{{{value}}}")
        clock, heard = max(ends) + 0.01, "".join(said)
    execution.seconds = clock - execution.started
    if pattern.endswith("tools"):
        execution.programs.append(ProgramOutput(0, f"{gold}\n"))
        execution.tools.append(ToolCall("calculator", '{"expression": "1+1"}', "2", 0.05, started=clock - 0.2))
    advantage = round(chance.uniform(-1.5, 1.5), 3)
    for call in execution.calls:
        call.advantage = advantage
    if chance.random() < 0.05:
        execution.fault = chance.choice(FAULTS)
        execution.reward = None if execution.fault.infra else Reward(0, 0, 0, 0, 0, False)
        return execution
    execution.answer = FinalAnswer("boxed", value, f"\\boxed{{{value}}}", len(execution.calls) - 1)
    reason = "" if right else f"expected {gold}, got {value}"
    execution.reward = Reward(float(right), 1.0, 1.0, 0.02, (1.0 if right else 0.0) + 0.78, right, reason)
    return execution


def a_call(
    chance: random.Random, agent: str, asked: tuple[dict[str, str], ...], text: str, role: Role, started: float
) -> Call:
    """Return a call whose tokens are the words of its text."""
    lengths = tuple(_word_lengths(text))
    call = Call(
        role, agent, asked, text, tokens=len(lengths) + 1, prompt_tokens=sum(len(m["content"]) for m in asked) // 4
    )
    call.lengths = (*lengths, 0)
    call.logprobs = tuple(round(-chance.expovariate(2.5), 2) for _ in call.lengths)
    call.seconds, call.started = 0.004 * len(lengths) * chance.uniform(0.7, 1.5), round(started, 3)
    call.finish = "length" if chance.random() < 0.02 else "stop"
    return call


def _word_lengths(text: str) -> Iterator[int]:
    """Yield the lengths of the words of a text, each with what is before it."""
    position = 0
    while position < len(text):
        end = min(
            (at for at in (text.find(" ", position + 1), text.find("\n", position + 1)) if at > 0), default=len(text)
        )
        yield end - position
        position = end
