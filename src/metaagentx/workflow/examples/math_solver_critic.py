# A solver and a critic take turns until the critic approves, at most twice.
from workflow import AgentNode, Workflow
from workflow.nodes import ReflectionNode

solver = AgentNode(
    name="Solver",
    system_prompt=(
        "You solve mathematics step by step. When a critic answers you, check each point: "
        "correct what is wrong, keep what is right, and deliver the whole solution again."
    ),
)
critic = AgentNode(
    name="Critic",
    system_prompt=(
        "You look for errors. Put the answer back into every condition of the question and redo the risky steps "
        "yourself. Deliver the first error you find and how to correct it, then the verdict: CORRECT or INCORRECT."
    ),
)
workflow = Workflow(name="math_solver_critic")
workflow.add_node(ReflectionNode(name="review", agent=solver, critic_agent=critic, num_iterations=2))
result = workflow.run(question)
print(result.content)
