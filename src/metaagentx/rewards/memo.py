"""Grades that workers have given, by task and answer: the executions of a task repeat each other's answers.

Only what is a function of the task and the answer is kept. So neither a fault of a grader, nor a limit that grading
exceeded or a worker that crashed, which depend on the machine; nor grades of users' functions, which may have a state,
a clock or chance in them; nor those of programs, which are measured by running them.
"""

from collections import OrderedDict

from ..types import Grade, GymEntry, MathGold

MAX_GRADES = 4096
MAX_CHARACTERS = 2_000
"""Longer answers are not kept: together with the number of grades, this bounds the memory."""


class GradeMemo:
    """Grades of the answers that were seen last."""

    def __init__(self) -> None:
        # By identity, because a task of a generator has no hash. The task that is kept beside the grade lives as long
        # as its entry, so no other object can have its identity.
        self._grades: OrderedDict[tuple[int, str], tuple[MathGold | GymEntry, Grade]] = OrderedDict()

    def find(self, grading: MathGold | GymEntry, answer: str) -> Grade | None:
        """Return the grade of an answer that was seen before."""
        key = (id(grading), answer)
        if key not in self._grades:
            return None
        self._grades.move_to_end(key)
        return self._grades[key][1]

    def keep(self, grading: MathGold | GymEntry, answer: str, grade: Grade) -> None:
        """Keep a grade, and forget the one that was not needed for the longest time."""
        if len(answer) > MAX_CHARACTERS:
            return
        self._grades[id(grading), answer] = grading, grade
        if len(self._grades) > MAX_GRADES:
            self._grades.popitem(last=False)
