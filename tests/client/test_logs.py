"""Log lines: each record is one line, with any content."""

import errno
import io
import json
import logging
import os
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from bedrockish.common import log_format as logs


@pytest.fixture(autouse=True)
def _untouched_root() -> Iterator[None]:
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    yield
    logging.getLogger(logs.ACCEPTING).filters.clear()
    root.setLevel(level)
    root.handlers[:] = handlers


def test_lines_for_people_name_time_level_and_node() -> None:
    out = io.StringIO()
    logs.set_up("info", "A", stream=out)
    logging.getLogger("x").debug("hidden")
    logging.getLogger("x").warning("two\nlines by %s", "me")
    line = out.getvalue()
    assert line.endswith("Z WARNING A two\\nlines by me\n")
    assert line.count("\n") == 1


def test_json_lines_have_level_node_text_and_trace() -> None:
    out = io.StringIO()
    logs.set_up("debug", "A", as_json=True, stream=out)
    try:
        raise ValueError("why")
    except ValueError:
        logging.getLogger("x").exception("it failed")
    found = json.loads(out.getvalue())
    assert {"level": "error", "node": "A", "from": "x", "text": "it failed"}.items() <= found.items()
    assert "ValueError: why" in found["trace"]


def test_repeated_log_lines_are_summed_up() -> None:
    now, lines = [0.0], []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    handler.addFilter(logs.LineLimit(lines=2, now=lambda: now[0]))
    logger = logging.Logger("a")
    logger.addHandler(handler)
    for number in range(50):
        logger.warning(f"caller {number} is gone")
        logger.warning("another kind")
    assert lines == ["caller 0 is gone", "another kind", "caller 1 is gone", "another kind"]
    now[0] = 61.0
    logger.warning("caller 99 is gone")
    assert lines[-1] == "caller 99 is gone (and 48 more lines like this in the last 61 s)"
    logger.warning("caller 100 is gone")
    assert lines[-1] == "caller 100 is gone"


def test_lack_of_descriptors_is_logged_once_a_minute_without_a_traceback() -> None:
    out = io.StringIO()
    logs.set_up("info", "A", stream=out)
    for _ in range(600):
        try:
            raise OSError(errno.EMFILE, "Too many open files")
        except OSError as error:
            trio_logger = logging.getLogger("trio.serve_listeners")
            trio_logger.error("accept returned %s (%s); retrying in %s seconds", "EMFILE", error, 0.1, exc_info=True)
    assert out.getvalue().count("\n") == 1


def _drained(reader: int) -> str:
    os.set_blocking(reader, False)
    found = b""
    with suppress(BlockingIOError):
        while part := os.read(reader, 1 << 20):
            found += part
    return found.decode()


def _socket_pair() -> tuple[int, int]:
    reader, writer = socket.socketpair()
    return reader.detach(), writer.detach()


@pytest.mark.parametrize("make", [os.pipe, _socket_pair, os.openpty])
def test_full_pipe_of_the_log_leaves_lines_out_and_does_not_wait(
    make: Callable[[], tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a supervisor that does not read a node's standard error would block the node at its next line."""
    reader, writer = make()
    try:
        with os.fdopen(writer, "w", closefd=False) as stream:
            monkeypatch.setattr(sys, "stderr", stream)
            logs.set_up("debug", "A")
            logger = logging.getLogger("x")
            for _ in range(30):
                logger.info("a" * 100_000)
            print("not read", file=sys.stderr)
            before = _drained(reader)
            logger.info("the reader is back")
            after = _drained(reader)
            assert os.get_blocking(writer), "other programs that write there still wait"
        assert 0 < before.count("a") < 30 * 100_000
        assert "aaa" in after or "missing" in after
        while "the reader is back" not in after:  # a terminal takes a long line in parts
            logger.info("the reader is back")
            after += _drained(reader)
        assert "output is missing here" in after
        assert "not read" not in after
        sys.stderr.close()
    finally:
        os.close(reader)
        os.close(writer)
