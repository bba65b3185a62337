"""Lines of the log in both forms, as a process writes them."""

import json
import subprocess
import sys

PROGRAM = """
import logging, sys, warnings
from octavo.log_format import fields, set_up_logging
set_up_logging(sys.argv[1], sys.argv[2], process=sys.argv[3])
logger = logging.getLogger("octavo.x")
logger.debug("unseen")
logger.info("two\\nlines of %s", "\\udcff\\u00e9",
            extra=fields({"a": 1, "b": None, "level": "mine"}))
try:
    raise ValueError("a fault")
except ValueError:
    logger.exception("it failed")
warnings.warn("careful")
"""


def written(*arguments: str) -> list[str]:
    """What the program above writes to standard error."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, *arguments], capture_output=True,
                          text=True, check=True)
    assert done.stdout == ""
    return done.stderr.splitlines()


def test_json() -> None:
    told, failed, warned = (json.loads(line) for line in written("info", "json", "engine"))
    assert told["message"] == "two\nlines of \udcff\u00e9" and told["a"] == 1 and "b" not in told
    assert (told["level"], told["logger"], told["process"]) == ("info", "octavo.x", "engine")
    assert failed["level"] == "error" and failed["exception"].endswith("ValueError: a fault")
    assert "careful" in warned["message"] and warned["logger"] == "py.warnings"


def test_text() -> None:
    first, *_ = written("error", "text", "engine")
    assert first.endswith("ERROR engine octavo.x: it failed")
    first, *_ = written("info", "text", "server")
    assert first.endswith("INFO octavo.x: two")
