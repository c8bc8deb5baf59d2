"""The exception that graders raise if the answer is not at fault."""

from ..errors import MetaAgentXError


class GraderUnavailable(MetaAgentXError):
    """A grader failed through no fault of the answer: an infrastructure fault, retried by the caller, never a score."""
