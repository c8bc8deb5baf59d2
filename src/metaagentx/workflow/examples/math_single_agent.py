# One solver. For a question that a careful agent gets right alone.
from workflow import AgentNode, Workflow

solver = AgentNode(
    name="Solver",
    system_prompt=(
        "You are a careful mathematician. Restate what is asked, solve it step by step, "
        "check the result against every condition of the question, then give it in \\boxed{}."
    ),
)
workflow = Workflow(name="math_single_agent")
workflow.add_node(solver)
result = workflow.run(question)
print(result.content)
