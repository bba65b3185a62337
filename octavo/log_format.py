"""Log lines of every process: as text, or as one JSON object a line. Standard library only.

Fields that belong to a line beside its message travel in `extra={"fields": {...}}`.
"""

import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("text", "json")


def set_up_logging(level: str, log_format: str, *, process: str = "server") -> None:
    """Sends this process' log to standard error. process: "server" or "engine"."""
    logging.raiseExceptions = False  # a log that cannot be written is not worth a traceback each
    handler = logging.StreamHandler(sys.stderr)
    if log_format == "json":
        handler.setFormatter(_JsonFormatter(process))
        logging.captureWarnings(True)
    else:
        name = "" if process == "server" else f"{process} "
        handler.setFormatter(logging.Formatter(
            f"%(asctime)s %(levelname)s {name}%(name)s: %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler])
    for noisy in ("uvicorn.error", "asyncio"):  # their news is ours to tell
        logging.getLogger(noisy).setLevel(logging.WARNING)


def fields(values: Mapping[str, Any]) -> dict[str, Any]:
    """`extra` for a log call: these fields stand beside the message. None is left out."""
    return {"fields": {name: value for name, value in values.items() if value is not None}}


class _JsonFormatter(logging.Formatter):
    """One JSON object a line: ts, level, logger, process, message, the fields of the line."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "ts": datetime.fromtimestamp(record.created, UTC).isoformat(
                timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(), "logger": record.name, "process": self._process,
            "message": record.getMessage(),
        }
        more: Mapping[str, Any] = getattr(record, "fields", {})
        line |= {name: value for name, value in more.items() if name not in line}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)
