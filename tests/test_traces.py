"""Every conversation in ``tests/traces`` still happens, word for word.

``pytest tests/test_traces.py --rewrite`` writes what happens into the files; then the diff is what to review.
"""

from pathlib import Path

import pytest

from tests.traces.grammar import play
from tests.traces.table import SlipError

TRACES = sorted((Path(__file__).parent / "traces").glob("*.txt"))


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.stem)
def test_output_of_each_trace_equals_its_file(path: Path, request: pytest.FixtureRequest) -> None:
    """The output of each trace equals its file."""
    happens = play(path.read_text())
    if request.config.getoption("--rewrite"):
        path.write_text(happens)
    assert path.read_text() == happens


def test_trace_with_a_wrong_tick_fails() -> None:
    """The file must name the present place of each leader."""
    with pytest.raises(SlipError, match="has committed 0 of its own, not 1"):
        play("cluster A B C\n----\nok\n\nA1: BEGIN Alice writes x\n----\n")


def test_trace_that_delivers_a_missing_message_is_refused() -> None:
    """A delivery of a missing message is a mistake of the trace."""
    with pytest.raises(SlipError, match="nothing COMMIT is under way"):
        play("cluster A B C\n----\nok\n\ndeliver A -> B COMMIT\n----\n")
