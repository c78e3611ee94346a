"""The printer of log lines: to standard error, one line each, for people or as JSON. Set up once, by a program."""

import json
import logging
import sys
import time
from typing import TextIO

LINE = "%(asctime)s %(levelname)-7s %(node)s %(message)s"


class _WithNode(logging.Filter):
    """Adds the node's name to each line."""

    def __init__(self, node: str) -> None:
        super().__init__()
        self._node = node

    def filter(self, record: logging.LogRecord) -> bool:
        record.node = self._node
        return True


class _Lines(logging.Formatter):
    """A line for people; a newline in a text does not begin another line."""

    converter = staticmethod(time.gmtime)
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def __init__(self) -> None:
        super().__init__(LINE)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  logging's name
        record.message = record.message.replace("\r", "\\r").replace("\n", "\\n")
        return super().formatMessage(record)


class _JsonLines(_Lines):
    """A JSON object for each line."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "node": getattr(record, "node", ""),
            "from": record.name,
            "text": record.getMessage(),
        }
        if record.exc_info:
            fields["trace"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False)


def set_up(level: str, node: str = "-", *, as_json: bool = False, stream: TextIO | None = None) -> None:
    """Let all loggers of this process write to standard error.

    Args:
        level: ``debug``, ``info``, ``warning`` or ``error``.
        node: what to call this process in its lines.
        as_json: write JSON lines.
        stream: write elsewhere.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_JsonLines() if as_json else _Lines())
    handler.addFilter(_WithNode(node))
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
