# The same solver five times, and the most frequent answer. For questions where a single try is unreliable.
from workflow import AgentNode, Workflow
from workflow.nodes import EnsembleNode

solver = AgentNode(
    name="Solver",
    system_prompt="Solve the question step by step in the way that seems surest to you. Give the answer in \\boxed{}.",
)
workflow = Workflow(name="math_self_consistency")
workflow.add_node(EnsembleNode(name="samples", agents=[solver] * 5, strategy="majority_vote"))
result = workflow.run(question)
print(result.content)
