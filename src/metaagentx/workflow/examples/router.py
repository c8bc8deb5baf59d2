# Choose by the kind of question: counting goes to an agent that enumerates by program, the rest to one that reasons.
import re

from workflow import AgentNode, ToolRegistry, Workflow
from workflow.nodes import RouterNode

tools = ToolRegistry()
tools.register_python()
counter = AgentNode(
    name="Counter",
    system_prompt="Count by a short Python program that enumerates everything, then explain why the count is right.",
    tool_registry=tools,
    max_turns=4,
)
reasoner = AgentNode(name="Reasoner", system_prompt="Solve the question by reasoning, and check every step.")


def kind_of_question(context):
    return "counting" if re.search(r"how many|number of", context.question, re.IGNORECASE) else "other"


workflow = Workflow(name="router")
workflow.add_node(
    RouterNode(
        name="kind",
        routes={"counting": counter, "default": reasoner},
        routing_func=kind_of_question,
        default_route="default",
    )
)
result = workflow.run(question)
print(result.content)
