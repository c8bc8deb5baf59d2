# Two debaters with opposite habits answer, read each other, answer again; a judge decides.
from workflow import AgentNode, Workflow
from workflow.nodes import DebateNode

bold = AgentNode(
    name="Bold",
    system_prompt="Find the elegant short argument. Give way only to a concrete error in it, never to mere doubt.",
)
sceptic = AgentNode(
    name="Sceptic",
    system_prompt="Take nothing for granted: compute everything yourself and look for a counterexample to every claim.",
)
judge = AgentNode(
    name="Judge",
    system_prompt="Decide by the arguments that survived. Redo the step in dispute yourself, then give the answer.",
)
workflow = Workflow(name="debate")
workflow.add_node(DebateNode(name="debate", debaters=[bold, sceptic], judge=judge, num_rounds=2))
result = workflow.run(question)
print(result.content)
