"""Writes log messages to standard error, one line for each, as text or as JSON. A program sets it up once."""

import json
import logging
import re
import sys
import time
from collections.abc import Callable
from typing import TextIO

LINES_A_MINUTE = 100
_NUMBER = re.compile(r"[0-9]+")
MINUTE_S = 60.0
KINDS_MAX = 1_000
KIND_CHARACTERS_MAX = 60
LINE = "%(asctime)s %(levelname)-7s %(node)s %(message)s"


class _WithNode(logging.Filter):
    """Adds the node's name to each line."""

    def __init__(self, node: str) -> None:
        super().__init__()
        self._node = node

    def filter(self, record: logging.LogRecord) -> bool:
        record.node = self._node
        return True


class LineLimit(logging.Filter):
    """Limits the lines of one kind in each minute; a later line has the number of lines that were left out.

    Lines are of one kind if their texts, before values are put in, begin alike except for numbers. Without the limit, a
    client that provokes one line could provoke millions and fill the disk.

    Args:
        lines: the most lines of one kind in a minute.
        now: a clock that only goes forward, in seconds.
    """

    def __init__(self, lines: int = LINES_A_MINUTE, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._lines, self._now = lines, now
        # Kind of line -> the time at which its minute began, and the number of lines since then.
        self._kinds: dict[tuple[str, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to write a line. The first line after a minute with left-out lines gets their number."""
        kind, now = (
            (record.name, _NUMBER.sub("#", str(record.msg)[: 2 * KIND_CHARACTERS_MAX])[:KIND_CHARACTERS_MAX]),
            self._now(),
        )
        since, count = self._kinds.get(kind, (now, 0))
        if now - since >= MINUTE_S:
            left_out = count - self._lines
            self._kinds[kind] = now, 1
            if left_out > 0:
                record.msg = (
                    f"{record.getMessage()} (and {left_out} more lines like this in the last {now - since:.0f} s)"
                )
                record.args = ()
            return True
        if len(self._kinds) >= KINDS_MAX and kind not in self._kinds:
            self._kinds.clear()
        self._kinds[kind] = since, count + 1
        return count < self._lines


class _Lines(logging.Formatter):
    """Formats a line for people; a newline in a text does not begin another line."""

    converter = staticmethod(time.gmtime)
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def __init__(self) -> None:
        super().__init__(LINE)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  logging's name
        record.message = record.message.replace("\r", "\\r").replace("\n", "\\n")
        return super().formatMessage(record)


class _JsonLines(_Lines):
    """Formats each line as a JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "node": getattr(record, "node", ""),
            "from": record.name,
            "text": record.getMessage(),
            **getattr(record, "fields", {}),  # values by which a program can count or filter lines
        }
        if record.exc_info:
            fields["trace"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False)


def set_up(level: str, node: str = "-", *, as_json: bool = False, stream: TextIO | None = None) -> None:
    """Set up all loggers of this process to write to standard error.

    Args:
        level: ``debug``, ``info``, ``warning`` or ``error``.
        node: the name of this process in its lines.
        stream: the output in place of standard error.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_JsonLines() if as_json else _Lines())
    handler.addFilter(_WithNode(node))
    if level != "debug":
        handler.addFilter(LineLimit())
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
