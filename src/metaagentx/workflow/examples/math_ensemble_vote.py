# Three solvers with different methods vote; a judge decides only when no answer has a majority.
from workflow import AgentNode, Workflow
from workflow.nodes import EnsembleNode

methods = {
    "Forward": "Derive the answer from the given conditions, one justified step after the other.",
    "Backward": "Start from what the answer must satisfy, work back to the conditions, then check each step forwards.",
    "Cases": "Find the cases that matter, treat every one of them, and make sure that none is missing.",
}
solvers = [AgentNode(name=name, system_prompt=f"You solve mathematics. {method}") for name, method in methods.items()]
judge = AgentNode(
    name="Judge",
    system_prompt=(
        "The solvers disagree. Find the first step where their arguments part, decide who is right there, "
        "and carry that argument through to the answer yourself."
    ),
)
workflow = Workflow(name="math_ensemble_vote")
workflow.add_node(EnsembleNode(name="vote", agents=solvers, strategy="majority_vote", consensus_agent=judge))
result = workflow.run(question)
print(result.content)
