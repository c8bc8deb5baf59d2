"""The base of errors that a person can do something about."""


class MetaAgentXError(Exception):
    """One clear line that names the thing and the fix. The command line prints it and exits with 2."""
