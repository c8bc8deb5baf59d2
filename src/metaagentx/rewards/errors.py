"""What graders raise when the fault is ours."""


class GraderUnavailable(Exception):
    """The machinery of a grader failed: an infra fault, retried by the caller, never a score."""
