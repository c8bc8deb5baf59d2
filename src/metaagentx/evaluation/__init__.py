"""Methods against one another: the same tasks, the same seeds, at equal budgets. docs/evaluation.md says more.

    methods = standard_methods(new=trained, old=before)          # or Methods of your own
    found = await evaluate(methods, {"gsm8k": tasks}, resources, EvaluationOptions(samples=4), Path("evaluation"))
    print(found.to_markdown())

A stopped evaluation goes on when it is called again with the same directory.
"""

from .figures import Comparison, Row, pass_at
from .measure import EvaluationOptions, evaluate
from .methods import Method, standard_methods
from .outcomes import Outcome
from .result import Evaluation

__all__ = [
    "Comparison",
    "Evaluation",
    "EvaluationOptions",
    "Method",
    "Outcome",
    "Row",
    "evaluate",
    "pass_at",
    "standard_methods",
]
