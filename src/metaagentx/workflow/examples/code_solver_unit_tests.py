# A programmer writes the program; a tester runs it on tests of its own and delivers the repaired program.
import subprocess

from workflow import AgentNode, ToolRegistry, Workflow


def execute_code(code):
    done = subprocess.run(["python", "-c", code], capture_output=True, text=True, timeout=10)
    return done.stdout + done.stderr


tools = ToolRegistry()
tools.register(
    name="execute_code",
    func=execute_code,
    description="Runs a Python program and returns what it prints, errors included.",
    parameters={"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]},
)
programmer = AgentNode(
    name="CodeSolver",
    system_prompt=(
        "You write correct Python. Settle input format, limits and edge cases first, choose an algorithm that is fast "
        "enough, then write the whole program. Deliver it in <solution></solution>."
    ),
)
tester = AgentNode(
    name="UnitTestAgent",
    system_prompt=(
        "You test programs. Run the proposed program on the examples of the question and on edge cases: empty, "
        "smallest, largest, repeated. Repair what fails and run it again. Deliver the whole final program in "
        "<solution></solution>."
    ),
    tool_registry=tools,
    max_turns=5,
)
workflow = Workflow(name="code_solver_unit_tests")
workflow.add_nodes([programmer, tester])
result = workflow.run(question)
print(result.content)
