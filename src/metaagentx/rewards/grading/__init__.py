"""The part of code grading that runs in the sandbox, where it is importable as `grading`.

Standard library only, relative imports only. `program` runs a whole program, `solution` serves calls of a solution's
functions, `checks` runs assert-style tests against a solution that lives in another run. Nothing in a solution's
process is trusted: the host, and the run that holds the tests, see plain data only.
"""

from . import checks, program, solution, values

__all__ = ["checks", "program", "solution", "values"]
