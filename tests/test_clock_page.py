"""The page about the clock: its statements run, and it has all functions."""

from pathlib import Path

import pytest

from bedrockish.engine.statements.clock_functions import clock_time
from bedrockish_journal.storage.table_layout import CLOCK_FUNCTIONS
from tests.engine.nodes import TestNode, request

PAGE = (Path(__file__).parent.parent / "docs" / "clock.md").read_text()


def test_every_function_is_on_the_page() -> None:
    assert not [name for name in CLOCK_FUNCTIONS if f"`{name}(" not in PAGE]


def test_times_of_clocks_have_the_documented_form() -> None:
    assert len(str(clock_time(1 << 60))) == len("2026-11-21 09:30:00.123")
    assert "`2026-11-21 09:30:00.123`" in PAGE


@pytest.mark.parametrize("block", range(2))
def test_statements_of_the_clock_page_run(tmp_path: Path, block: int) -> None:
    node = TestNode(tmp_path / "a.db")
    node.engine.scope.tick = lambda: 5
    try:
        node.run("CREATE TABLE track_table(TransactionId, operation, row_key)")
        node.run("CREATE TABLE transaction_commit_clock(TransactionId, CommitClock, timestamp)")
        text = PAGE.split("```sql\n")[block + 1].split("```")[0]
        prepared = node.engine.execute(request(text), clock=9)
        assert prepared.clock == (9 if block == 0 else 0)
    finally:
        node.engine.close()
