# A graph: two independent drafts, a reviewer that joins them, and a way back to one of the drafts until it approves.
from workflow import END, AgentGraph, AgentNode

planner = AgentNode(name="Planner", system_prompt="Name what is asked, the conditions, and two ways to solve it.")
first = AgentNode(name="First", system_prompt="Solve the question. If a reviewer has answered, repair what it found.")
second = AgentNode(name="Second", system_prompt="Solve the question by a method that is not the first to come to mind.")
reviewer = AgentNode(
    name="Reviewer",
    system_prompt=(
        "Compare the solutions with the question and with each other. If you are sure of the answer, deliver it in "
        "full with the verdict CORRECT. Otherwise deliver the first error you see, with the verdict INCORRECT."
    ),
)
graph = AgentGraph(name="graph_review_loop", max_steps=7)
graph.add_node("plan", planner)
graph.add_node("first", first)
graph.add_node("second", second)
graph.add_node("review", reviewer)
graph.add_edge("plan", "first")
graph.add_edge("plan", "second")
graph.add_edge("first", "review")
graph.add_edge("second", "review")
graph.add_conditional_edges("review", lambda context: END if context.latest.verdict else "first", targets=["first"])
graph.set_entry_point("plan")
result = graph.run(question)
print(result.content)
