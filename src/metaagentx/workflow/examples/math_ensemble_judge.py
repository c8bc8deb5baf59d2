# Three solvers and a judge who always reads all of them. For hard questions, where the majority may be wrong.
from workflow import AgentNode, Workflow
from workflow.nodes import EnsembleNode

solvers = [
    AgentNode(name=name, system_prompt=prompt)
    for name, prompt in (
        ("Algebra", "Translate the question into equations and solve them exactly. Deliver answer and key equations."),
        ("Cases", "Split the question into cases and settle each one. Deliver the answer and the list of cases."),
        ("Backward", "Ask what the answer must satisfy, work backwards. Deliver the answer and why no other fits."),
    )
]
judge = AgentNode(
    name="Judge",
    system_prompt=(
        "You judge solutions. Check each one against the question: first its answer, then its weakest step. "
        "Trust arguments, not numbers of votes. Deliver the right answer, corrected if all of them are wrong."
    ),
)
workflow = Workflow(name="math_ensemble_judge")
workflow.add_node(EnsembleNode(name="vote", agents=solvers, strategy="consensus", consensus_agent=judge))
result = workflow.run(question)
print(result.content)
