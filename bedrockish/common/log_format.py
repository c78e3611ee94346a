"""Writes log messages to standard error, one line for each, as text or as JSON. A program sets it up once."""

import io
import json
import logging
import os
import re
import select
import stat
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TextIO

LINES_A_MINUTE = 100
_NUMBER = re.compile(r"[0-9]+")
MINUTE_S = 60.0
KINDS_MAX = 1_000
KIND_CHARACTERS_MAX = 60
PIECE_BYTES = getattr(select, "PIPE_BUF", 512)  # a pipe that is ready takes so many bytes without waiting
CUT = b"\n(output is missing here, because its reader was slow)\n"
ACCEPTING = "trio.serve_listeners"  # logs each of its ten attempts a second while the process may open no file
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


class _WithoutTrace(LineLimit):
    """Lets one line of a kind pass in each minute, without its traceback, which would say no more than the line."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.exc_info = None
        return super().filter(record)


class _Lines(logging.Formatter):
    """Formats a line as text; a newline in a text does not begin another line."""

    converter = staticmethod(time.gmtime)
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def __init__(self) -> None:
        super().__init__(LINE)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  logging's name
        record.message = record.message.replace("\r", "\\r").replace("\n", "\\n")
        return super().formatMessage(record)


class _JsonLines(_Lines):
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


class _Unwaited(io.FileIO):
    """Writes to a pipe, a socket or a terminal without waiting for its reader; drops texts that do not fit.

    Otherwise a supervisor that does not read a node's output, or a paused terminal, would stop the node's event loop.
    ``O_NONBLOCK`` on the descriptor itself would hold for other programs that write to it, too: where the system lets
    a process open the pipe again, this process has ``O_NONBLOCK`` for itself.
    """

    def __init__(self, descriptor: int) -> None:
        file = descriptor
        if stat.S_ISFIFO(os.fstat(descriptor).st_mode) or os.isatty(descriptor):
            with suppress(OSError):  # the pipe is another user's, or the system lacks /proc
                flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
                file = os.open(f"/proc/self/fd/{descriptor}", flags)
        self._is_blocking = file == descriptor
        super().__init__(file, "w", closefd=not self._is_blocking)
        self._poll = select.poll()
        self._poll.register(file, select.POLLOUT)
        self._rest, self._is_cut = b"", False  # the rest of a text that was written in part; whether a text was dropped

    def write(self, text: Any, /) -> int:
        """Write a text as far as it fits; return its whole length."""
        if self._pass_on():
            self._rest = CUT * self._is_cut + bytes(text)
            self._is_cut = False
            self._pass_on()
        else:
            self._is_cut = True
        return len(text)

    def _pass_on(self) -> bool:
        """Write the rest as far as it fits; return whether all of it did."""
        while self._rest and not (self._is_blocking and not self._poll.poll(0)):
            written = super().write(self._rest[:PIECE_BYTES])
            if written is None:
                break
            self._rest = self._rest[written:]
        return not self._rest


def never_wait(stream: TextIO) -> TextIO:
    """Return a stream with the same output that never waits for the reader; the stream itself if it has no descriptor
    that can be polled.
    """
    try:
        file = _Unwaited(stream.fileno())
    except (OSError, AttributeError):  # a stream of Python alone; or Windows, which lacks poll
        return stream
    return io.TextIOWrapper(file, stream.encoding, stream.errors, write_through=True)


def set_up(level: str, node: str = "-", *, as_json: bool = False, stream: TextIO | None = None) -> None:
    """Set up all loggers of this process to write to standard error, which never waits for its reader from then on.

    Args:
        level: ``debug``, ``info``, ``warning`` or ``error``.
        node: the name of this process in its lines.
        stream: the output in place of standard error.
    """
    if stream is None:
        sys.stderr = never_wait(sys.stderr)
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_JsonLines() if as_json else _Lines())
    handler.addFilter(_WithNode(node))
    if level != "debug":
        handler.addFilter(LineLimit())
    logging.getLogger(ACCEPTING).addFilter(_WithoutTrace(lines=1))
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
