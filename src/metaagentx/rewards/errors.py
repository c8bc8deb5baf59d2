"""What graders raise when the fault is ours."""

from ..errors import MetaAgentXError


class GraderUnavailable(MetaAgentXError):
    """The machinery of a grader failed: an infra fault, retried by the caller, never a score."""
