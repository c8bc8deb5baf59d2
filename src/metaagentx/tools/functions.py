"""Tools that are Python functions of the operator, named `module:function`.

The signature becomes the JSON schema, the docstring the description. Arguments are read strictly: "3" is not a number.
An `async` function is awaited on the host's event loop, so it must not block. Any other function runs in a thread of
its own. A thread cannot be killed: after the deadline the agent is told so and the thread is left to itself. It is a
daemon, so it does not keep the program from exiting. Each function has at most `MAX_THREADS` of them; a call that finds
all taken waits for one, within its deadline. So a function that hangs on some arguments can disable no other.
"""

import asyncio
import importlib
import inspect
import json
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticUserError
from pydantic_core import SchemaError

from ..errors import MetaAgentXError
from ..types import JSON
from .spec import BadArguments, ToolResult, ToolServerGone, ToolSpec, parse_arguments

MAX_THREADS = 256
"""How many calls of a plain function may run at the same time."""
_SHOWN_CHARACTERS = 300
_VALUES = ("default", "const", "enum", "examples")


class FunctionTool:
    """One function with the model of its arguments."""

    def __init__(self, address: str) -> None:
        """Import the function and describe it; raise MetaAgentXError if either is not possible."""
        self._function = _load(address)
        self._threads = asyncio.Semaphore(MAX_THREADS)
        self._arguments, self._names = _argument_model(address, self._function)
        schema = _without_titles(self._arguments.model_json_schema(by_alias=True))
        description = inspect.cleandoc(self._function.__doc__ or "")
        if not description:
            raise MetaAgentXError(f"tools.functions: {address} has no docstring: write what the tool does in it")
        self.spec = ToolSpec(address.rpartition(":")[2].rpartition(".")[2], description, schema)

    def check(self, arguments: str) -> None:
        """Raise BadArguments if the arguments do not fit the type hints."""
        self._parse(arguments)

    async def call(self, arguments: str, seconds: float) -> ToolResult:
        """Run the function for at most so long."""
        values = self._parse(arguments)
        work = _guard if inspect.iscoroutinefunction(self._function) else self._run_in_thread
        running = asyncio.ensure_future(work(self._function, values))
        # Not asyncio.timeout: a function that ignores its cancellation would be waited for.
        try:
            await asyncio.wait({running}, timeout=seconds)
        finally:
            timed_out = not running.done()
            if timed_out:
                running.cancel()
                running.add_done_callback(_forget)
        if timed_out:
            return ToolResult(f"Error: {self.spec.name} was not done after {seconds:g} s.", failed=True)
        if running.cancelled():  # by the function itself
            return ToolResult(f"Error: {self.spec.name} was canceled.", failed=True)
        if isinstance(error := running.exception(), ToolServerGone):
            raise error
        if error is not None:
            return ToolResult(f"Error: {_describe(error)}", failed=True)
        return ToolResult(_as_text(running.result()))

    async def _run_in_thread(self, function: Callable[..., Any], values: Mapping[str, Any]) -> object:
        """Run a function in a new daemon thread and return its result."""
        await self._threads.acquire()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[object] = loop.create_future()

        def finish(result: object, error: BaseException | None) -> None:
            self._threads.release()
            if future.done():
                return
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(_as_settable(error))

        def work() -> None:
            result: object = None
            failure: BaseException | None = None
            try:
                result = function(**values)
            except BaseException as error:  # noqa: BLE001  also SystemExit is only a failure of the tool
                failure = error
            try:
                loop.call_soon_threadsafe(finish, result, failure)
            except RuntimeError:
                pass  # the loop is closed: nobody waits any more

        try:
            threading.Thread(target=work, daemon=True, name=f"tool {self.spec.name}").start()
        except RuntimeError as error:
            self._threads.release()
            raise ToolServerGone(f"no thread for {self.spec.name}: {error}") from error
        return await future

    def _parse(self, arguments: str) -> dict[str, Any]:
        """Return the arguments by name, converted to the types of the signature."""
        parse_arguments(arguments)  # pydantic accepts repeated keys and infinities, other parsers do not
        try:
            parsed = self._arguments.model_validate_json(arguments, strict=True)
        except ValidationError as error:
            problem = error.errors(include_url=False, include_context=False)[0]
            path = ".".join(map(str, problem["loc"]))
            raise BadArguments(f"{path}: {problem['msg']}"[:_SHOWN_CHARACTERS]) from None
        return {name: getattr(parsed, field) for field, name in self._names.items()}


async def _guard(function: Callable[..., Any], values: Mapping[str, Any]) -> object:
    try:
        return await function(**values)
    except (SystemExit, KeyboardInterrupt) as error:  # these would end the event loop
        raise RuntimeError(f"the tool raised {type(error).__name__}") from error


def _as_settable(error: BaseException) -> Exception:
    """Return an exception that a future can have."""
    plain = isinstance(error, Exception) and not isinstance(error, StopIteration | asyncio.CancelledError)
    return error if plain else RuntimeError(_describe(error))  # type: ignore[return-value]


def _forget(running: "asyncio.Future[object]") -> None:
    """Take the outcome of a call that nobody waits for any more."""
    if not running.cancelled():
        running.exception()


def _as_text(value: object) -> str:
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except (ValueError, TypeError, RecursionError):
        return str(value)


def _describe(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001  an exception whose __str__ raises
        return type(error).__name__


def _load(address: str) -> Callable[..., Any]:
    """Import `module:function`. The module is searched in the working directory first."""
    module_name, colon, name = address.partition(":")
    if not colon or not module_name or not name:
        raise MetaAgentXError(
            f"tools.functions: invalid value {address!r}, expected module:function, such as tools:add"
        )
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        function: Any = importlib.import_module(module_name)
        for part in name.split("."):
            function = getattr(function, part)
    except AttributeError:
        raise MetaAgentXError(
            f"tools.functions: {module_name} has no {name}: correct the name in {address!r}"
        ) from None
    except Exception as error:
        raise MetaAgentXError(
            f"tools.functions: {address} cannot be imported ({_describe(error)}): correct it, or run the command in "
            "the directory of the module"
        ) from error
    finally:
        # At the end, so that what the function imports later is found and shadows nothing.
        sys.path.remove(here)
        if here not in sys.path:
            sys.path.append(here)
    if not callable(function) or inspect.isclass(function):
        raise MetaAgentXError(f"tools.functions: {address} is not a function: name one")
    return function  # type: ignore[no-any-return]


def _argument_model(address: str, function: Callable[..., Any]) -> tuple[type[BaseModel], dict[str, str]]:
    """Return a model of the arguments, and the name of the argument for each of its fields."""
    try:
        parameters = inspect.signature(function).parameters
        hints = get_type_hints(function, include_extras=True)
    except (TypeError, ValueError, NameError) as error:
        raise MetaAgentXError(f"tools.functions: {address} has no readable signature ({error}): write it out") from None
    names: dict[str, str] = {}
    fields: dict[str, Any] = {}
    for number, (name, parameter) in enumerate(parameters.items()):
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise MetaAgentXError(
                f"tools.functions: {address}: argument {parameter} cannot be given by name: give each argument a name"
            )
        if name not in hints:
            raise MetaAgentXError(
                f"tools.functions: {address}: argument {name} has no type hint: write one, such as {name}: str"
            )
        # The fields have names of their own, because an argument may have the name of a method of the model.
        field = f"argument_{number}"
        names[field] = name
        default = {} if parameter.default is parameter.empty else {"default": parameter.default}
        fields[field] = (hints[name], Field(alias=name, **default))
    try:
        model: type[BaseModel] = create_model("Arguments", __config__=ConfigDict(extra="forbid"), **fields)
        model.model_json_schema(by_alias=True)
    except (PydanticUserError, SchemaError, TypeError) as error:
        reason = str(error).partition("\n")[0]
        raise MetaAgentXError(
            f"tools.functions: {address}: its type hints have no JSON schema ({reason}): use types such as str, int, "
            "float, bool, list[str], Literal or a pydantic model"
        ) from None
    return model, names


def _without_titles(schema: Any) -> Any:
    """Return a schema without the titles that pydantic adds: they repeat the names."""
    if isinstance(schema, list):
        return [_without_titles(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    kept: dict[str, JSON] = {}
    for key, part in schema.items():
        if key == "title" and isinstance(part, str):
            continue
        kept[key] = part if key in _VALUES else _without_titles(part)
    return kept
