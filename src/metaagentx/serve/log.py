"""The log: one JSON object per line on standard error, without questions, answers and keys."""

import json
import logging
import sys
import time
from typing import Any

LOGGER = logging.getLogger("metaagentx.serve")


class JSONFormatter(logging.Formatter):
    """Formats records, also those of uvicorn, as JSON; a record whose message is a dict gives its fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {"time": f"{stamp}.{int(record.msecs):03d}Z", "level": record.levelname.lower()}
        line |= record.msg if isinstance(record.msg, dict) else {"message": record.getMessage()}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


def set_up_logging() -> None:
    """Write our records and the warnings of uvicorn to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JSONFormatter())
    for name, level in (("metaagentx.serve", logging.INFO), ("uvicorn.error", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level)
