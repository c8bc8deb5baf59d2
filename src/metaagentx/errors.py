"""The errors that a person can do something about, and the end that a person asked for."""


class MetaAgentXError(Exception):
    """One clear line that names the thing and the fix. The command line prints it and exits with 2."""


class Interrupted(SystemExit):
    """A signal ended the command. The command line prints the message and exits with 130.

    An exit and no exception of ours: nothing that handles errors holds it up.
    """

    def __init__(self, message: str = "stopped; the same command goes on from here") -> None:
        super().__init__(130)
        self.message = message
