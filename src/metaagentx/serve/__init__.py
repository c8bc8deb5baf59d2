"""The OpenAI API in front of a `System`: each request gets its own workflow.

    async with System.open("runs/tiny") as system:
        await serve(system, ServeOptions(port=8080))      # until SIGTERM; requests under way finish

docs/serve.md describes what clients see.
"""

from .app import build_app
from .options import ServeOptions
from .server import serve

__all__ = ["ServeOptions", "build_app", "serve"]
