"""Compares methods on the same tasks, with the same seeds, at equal budgets. docs/evaluation.md has the details.

    methods = standard_methods(new=trained, old=before)          # or your own Methods
    evaluation = await evaluate(methods, {"gsm8k": tasks}, resources, EvaluationOptions(samples=4), Path("evaluation"))
    print(evaluation.to_markdown())

A second call with the same directory resumes an evaluation that was stopped.
"""

from .figures import Comparison, MethodFigures, pass_at
from .measure import EvaluationOptions, evaluate
from .methods import Method, model_methods, standard_methods
from .outcomes import Outcome
from .result import Evaluation

__all__ = [
    "Comparison",
    "Evaluation",
    "EvaluationOptions",
    "Method",
    "MethodFigures",
    "Outcome",
    "evaluate",
    "model_methods",
    "pass_at",
    "standard_methods",
]
