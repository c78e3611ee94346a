"""Log lines: each record is one line, with any content."""

import io
import json
import logging
from collections.abc import Iterator

import pytest

from bedrockish.common import log_format as logs


@pytest.fixture(autouse=True)
def _untouched_root() -> Iterator[None]:
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    yield
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
