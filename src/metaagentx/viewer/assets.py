"""The files of the page: which there are, and the same files as one script and one style sheet for the export.

The modules are written in a plain form of JavaScript modules, so that a few lines can put them into one script: imports
are `import { a, b } from "./x.js";`, each on its lines at the top, and exports are declarations of functions and
constants.
"""

import re
from functools import cache
from pathlib import Path

from ..errors import MetaAgentXError

_ROOT = Path(__file__).with_name("static")
_TYPES = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
_IMPORT = re.compile(r'^import \{([^}]*)\} from "\./([\w-]+\.js)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?function\*? (\w+)|const (\w+)|class (\w+))", re.MULTILINE)
CHARTS = "vendor/uplot/uPlot.iife.min.js"
STYLES = ("vendor/uplot/uPlot.min.css", "style.css")
ENTRY = "app.js"


def page() -> bytes:
    """Return the page that the server sends."""
    return (_ROOT / "index.html").read_bytes()


def asset(name: str) -> tuple[bytes, str] | None:
    """Return a file of the page with its media type; None for any other name."""
    path = _files().get(name)
    return None if path is None else (path.read_bytes(), _TYPES[path.suffix])


def style() -> str:
    """Return all style sheets as one."""
    return "\n".join((_ROOT / name).read_text("utf-8") for name in STYLES)


@cache
def script() -> str:
    """Return the chart library and all modules as one script."""
    parts = [(_ROOT / CHARTS).read_text("utf-8"), '"use strict";', "const modules = {};"]
    for name in _in_order(ENTRY, [], []):
        parts.append(_as_function(name, (_ROOT / name).read_text("utf-8")))
    return "(() => {\n" + "\n".join(parts) + "\n})();\n"


@cache
def _files() -> dict[str, Path]:
    """Return all files that may be asked for: a name that is not among them leads nowhere."""
    paths = (path for path in _ROOT.rglob("*") if path.suffix in _TYPES and path.is_file())
    return {path.relative_to(_ROOT).as_posix(): path for path in paths}


def _in_order(name: str, done: list[str], above: list[str]) -> list[str]:
    """Return the modules that one needs and then itself."""
    if name in above:
        raise MetaAgentXError(f"{name} imports itself, through {' and '.join(above[above.index(name) + 1 :])}")
    if name not in done:
        for _, needed in _IMPORT.findall((_ROOT / name).read_text("utf-8")):
            _in_order(needed, done, [*above, name])
        done.append(name)
    return done


def _as_function(name: str, source: str) -> str:
    """Return a module as a function that is called once and returns its exports."""
    exported = [next(filter(None, names)) for names in _EXPORT.findall(source)]
    body = _IMPORT.sub(_as_constant, _EXPORT.sub("", source))
    if re.search(r"^(import|export)\b", body, re.MULTILINE):
        raise MetaAgentXError(f"{name} has an import or export of a form that the export cannot read")
    return f'modules["{name}"] = (() => {{\n{body}\nreturn {{ {", ".join(exported)} }};\n}})();'


def _as_constant(match: re.Match[str]) -> str:
    names = match[1].strip().rstrip(",").replace(" as ", ": ")
    return f'const {{ {" ".join(names.split())} }} = modules["{match[2]}"];\n'
