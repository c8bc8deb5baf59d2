# Three solvers vote, then a verifier checks the winner with exact computation and has the last word.
from workflow import AgentNode, ToolRegistry, Workflow
from workflow.nodes import EnsembleNode

prompts = (
    ("Direct", "Solve the question by the most direct computation."),
    ("Structure", "Look for symmetry, invariants or a known theorem first, then solve the question."),
    ("Small", "Solve small cases, find the pattern, and prove it for the question."),
)
solvers = [AgentNode(name=name, system_prompt=prompt) for name, prompt in prompts]
tools = ToolRegistry()
tools.register_python()
verifier = AgentNode(
    name="Verifier",
    system_prompt=(
        "Verify the proposed answer independently: brute force or exact arithmetic in Python where that is possible, "
        "a second derivation where it is not. Deliver the verified answer, or the corrected one."
    ),
    tool_registry=tools,
    max_turns=4,
)
workflow = Workflow(name="math_ensemble_verify")
workflow.add_node(EnsembleNode(name="vote", agents=solvers))
workflow.add_node(verifier)
result = workflow.run(question)
print(result.content)
