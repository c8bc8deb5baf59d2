"""Which model is the teacher: the programmed one, or a model on an OpenAI-compatible server."""

import json
import os
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass

from ..errors import MetaAgentXError
from ..policy import ChatModel

PROGRAMMED = "programmed"
"""Name of the teacher that needs no server."""


@dataclass(frozen=True, slots=True)
class Teacher:
    """A teacher as the options of `metaagentx coldstart` describe it."""

    model: str = PROGRAMMED
    base_url: str | None = None
    key_env: str | None = None
    """The environment variable that holds the API key."""
    extra_body: str | None = None
    """A JSON object that is added to each request."""

    def body(self) -> dict[str, object]:
        """Return the extra body, parsed."""
        example = """'{"top_p": 0.95}'"""
        try:
            body = json.loads(self.extra_body or "{}", parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            raise MetaAgentXError(
                f"--extra-body is not JSON ({error}): expected an object, such as {example}"
            ) from None
        if not isinstance(body, dict):
            raise MetaAgentXError(f"--extra-body is not a JSON object: expected one, such as {example}")
        return body

    def open(self) -> AbstractAsyncContextManager[ChatModel]:
        """Return the policy; an invalid key, address or option is found here."""
        body = self.body()
        if self.model == PROGRAMMED:
            server_options = {"base-url": self.base_url, "key-env": self.key_env, "extra-body": self.extra_body}
            for name, value in server_options.items():
                if value is not None:
                    raise MetaAgentXError(f"--{name} is for a teacher on a server: name its model with --teacher")
            from .programmed_teacher import ProgrammedTeacher

            return nullcontext(ProgrammedTeacher())
        if self.key_env is not None and not os.environ.get(self.key_env, "").strip():
            raise MetaAgentXError(f"--key-env {self.key_env}: this variable is not set or empty: put the key in it")
        from ..backends.openai import OpenAIChatModel

        return OpenAIChatModel(self.model, self.base_url, self.key_env or "OPENAI_API_KEY", body)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON value")
