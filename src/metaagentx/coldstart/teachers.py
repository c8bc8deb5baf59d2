"""Which model is the teacher: the programmed one, or a model on an OpenAI-compatible server."""

from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass

from ..backends.openai import OpenAIChatModel, parse_extra_body
from ..errors import MetaAgentXError
from ..policy import ChatModel

PROGRAMMED = "programmed"
"""Name of the teacher of a new small model. It needs no server."""
VARIED = "varied"
"""Name of the teacher of a pretrained model, which speaks in varied words. It needs no server."""


@dataclass(frozen=True, slots=True)
class Teacher:
    """A teacher as the options of `metaagentx coldstart` describe it."""

    model: str = PROGRAMMED
    base_url: str | None = None
    key_env: str | None = None
    """The environment variable that holds the API key."""
    extra_body: str | None = None
    """A JSON object that is added to each request."""

    @property
    def is_programmed(self) -> bool:
        """Return whether this is a teacher of ours, which needs no server and no manual."""
        return self.model in (PROGRAMMED, VARIED)

    def body(self) -> dict[str, object]:
        """Return the extra body, parsed."""
        return parse_extra_body(self.extra_body)

    def open(self) -> AbstractAsyncContextManager[ChatModel]:
        """Return the policy; an invalid key, address or option is found here."""
        if self.is_programmed:
            server_options = {"base-url": self.base_url, "api-key-env": self.key_env, "extra-body": self.extra_body}
            for name, value in server_options.items():
                if value is not None:
                    raise MetaAgentXError(f"--{name} is for a teacher on a server: name its model with --teacher")
            from .programmed_teacher import ProgrammedTeacher
            from .varied_teacher import VariedTeacher

            return nullcontext(ProgrammedTeacher() if self.model == PROGRAMMED else VariedTeacher())
        return OpenAIChatModel.from_options(self.model, self.base_url, self.key_env, self.extra_body)
