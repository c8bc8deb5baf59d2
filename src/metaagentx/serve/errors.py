"""Errors as the OpenAI API states them: `{"error": {"message", "type", "param", "code"}}`."""

from collections.abc import Mapping

from starlette.responses import JSONResponse

_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error", 504: "timeout_error"}


class APIError(Exception):
    """A request that is refused or that failed, with its HTTP status."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = dict(headers or {})

    def to_json(self) -> dict[str, dict[str, str | None]]:
        """Return the body of the response."""
        kind = _TYPES.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        """Return the response."""
        return JSONResponse(self.to_json(), self.status, self.headers)


class ClientLeft(Exception):
    """The client closed its connection before it had the answer."""


def invalid(param: str | None, message: str, code: str | None = None) -> APIError:
    """Return the error for a request that the client has to change."""
    return APIError(400, message, param=param, code=code)
