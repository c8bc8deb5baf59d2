# One agent that computes instead of guessing: it writes Python, reads what it prints, and continues.
from fractions import Fraction

from workflow import AgentNode, ToolRegistry, Workflow


def exact_sum(terms):
    return sum(Fraction(term) for term in terms)


tools = ToolRegistry()
tools.register_python()
tools.register("exact_sum", exact_sum, "Adds fractions exactly.", {"terms": 'a list of texts such as "1/3"'})
solver = AgentNode(
    name="Solver",
    system_prompt=(
        "Plan first. Do every computation with a tool: one fenced python block that prints what you need, then stop "
        "and wait for its output. Believe the output, not your memory. Give the answer in \\boxed{}."
    ),
    tool_registry=tools,
    max_turns=6,
)
workflow = Workflow(name="tool_math")
workflow.add_node(solver)
result = workflow.run(question)
print(result.content)
