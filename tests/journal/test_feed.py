"""The change feed, on a journal that is there already: order, cursors, filters, safe time."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest

from bedrockish.api.requests import Answer, Result, Token, encode_results
from bedrockish.cli.changes import as_text
from bedrockish.client.feed import _transactions_in
from bedrockish.errors import DamagedError
from bedrockish_journal.feed.change_feed import (
    CursorError,
    Feed,
    FeedCursor,
    FeedPrunedError,
    FeedUnreadableError,
    cursor_of_copy,
    parse_cursor,
)
from bedrockish_journal.feed.json_form import as_data
from bedrockish_journal.model.access_set import AccessSet
from bedrockish_journal.model.changes import INSERT, Change, encode_changes, encode_statements
from bedrockish_journal.model.transaction import MEMBERS, Transaction, Txid
from tests.node.test_feed_page import reader_of


def row(clock: int, leader: str, *tables: str) -> tuple[int, str, str, int, bytes]:
    changes = encode_changes(Change(table, ("id",), INSERT, 1, 1, None, (1,)) for table in tables)
    body = Transaction(
        Txid(clock, leader), {}, 0, 0, 0, f"c{clock}", "serializable", "rows", AccessSet(), changes, b""
    ).body
    return clock, leader, leader, 1, body


@pytest.fixture
def journal() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:")) as db:
        fill(db)
        yield db


def fill(db: sqlite3.Connection) -> None:
    db.execute("CREATE TABLE bedrockish_meta(key TEXT PRIMARY KEY, value)")
    db.execute("CREATE TABLE bedrockish_pruned(leader, tick, hash, clock, origin)")
    columns = "seq INTEGER PRIMARY KEY, clock, origin, leader, tick, body, kind DEFAULT 'rows', repeat DEFAULT 0"
    db.execute(f"CREATE TABLE bedrockish_journal({columns})")
    db.execute("CREATE TABLE bedrockish_schema(clock, leader, activates, failure)")
    rows = [row(30, "B", "t"), row(10, "A", "t", "u"), row(20, "B", "u"), row(20, "A", "t"), row(40, "A", "t")]
    db.executemany("INSERT INTO bedrockish_journal(clock, origin, leader, tick, body) VALUES (?,?,?,?,?)", rows)
    columns = "clock, origin, leader, tick, body, repeat"
    second = f"INSERT INTO bedrockish_journal({columns}) SELECT clock, origin, 'C', 1, body, 1 FROM bedrockish_journal"
    db.execute(f"{second} LIMIT 2")
    db.execute("INSERT INTO bedrockish_meta VALUES ('safe', 30)")


def read(db: sqlite3.Connection, feed: Feed, limit: int = 100) -> list[str]:
    return [str(one.cursor) for one in feed.take(db.execute(*feed.question(limit)).fetchall())]


def test_each_transaction_comes_once_in_order_of_clock_and_leader_up_to_safe_time(journal: sqlite3.Connection) -> None:
    assert read(journal, Feed()) == ["10.A", "20.A", "20.B", "30.B"]


def test_feed_has_a_schema_change_where_it_came_into_force(journal: sqlite3.Connection) -> None:
    for clock, activates, failure in ((12, 25, ""), (26, 28, "UNIQUE constraint failed"), (29, 35, "")):
        change = Transaction(
            *(Txid(clock, "C"), {}, 0, 0, 0, f"c{clock}", "serializable", "schema", AccessSet()),
            *(encode_statements([f"DROP TABLE t{clock}"]), b"", (), activates),
        )
        journal.execute(
            "INSERT INTO bedrockish_journal VALUES (NULL, ?, 'C', 'C', ?, ?, 'schema', 0)", (clock, clock, change.body)
        )
        journal.execute("INSERT INTO bedrockish_schema VALUES (?, 'C', ?, ?)", (clock, activates, failure))
    found = Feed().take(journal.execute(*Feed().question(100)).fetchall())
    assert [str(one.cursor) for one in found] == ["10.A", "20.A", "20.B", "25.C", "28.C", "30.B"]
    assert [one.statements for one in found if one.kind == "schema"] == [("DROP TABLE t12",), ()]
    journal.execute("DELETE FROM bedrockish_journal WHERE clock = 12")
    with pytest.raises(FeedPrunedError):
        read(journal, Feed("20.B"))
    assert read(journal, Feed("25.C")) == ["28.C", "30.B"]


def test_feed_is_the_same_with_any_page_size_and_from_any_cursor(journal: sqlite3.Connection) -> None:
    whole = read(journal, Feed())
    for size in range(1, 6):
        feed, found = Feed(), []
        while page := read(journal, feed, size):
            found += page
        assert found == whole
    for place, cursor in enumerate(whole):
        assert read(journal, Feed(cursor)) == whole[place + 1 :]


def test_feed_names_all_commands_of_a_transaction(journal: sqlite3.Connection) -> None:
    shared = Transaction(
        *(Txid(15, "C"), {}, 0, 0, 0, "first", "serializable", "rows", AccessSet()),
        *(encode_changes([]), b"", (), 0, (("second", b""), ("third", b""))),
    )
    journal.execute("INSERT INTO bedrockish_journal VALUES (NULL, 15, 'C', 'C', 1, ?, 'rows', 0)", (shared.body,))
    alone, found, *_ = Feed().take(journal.execute(*Feed().question(100)).fetchall())
    assert (found.command, found.joined) == ("first", ("second", "third"))
    assert (as_data(found)["command"], as_data(found)["joined"]) == ("first", ["second", "third"])
    assert as_text(found).endswith(" cursor 15.C commands first, second, third")
    assert (alone.joined, as_data(alone)["joined"]) == ((), [])
    assert alone.makers == (alone.command,) * len(alone.changes)
    assert "commands" not in as_text(alone)


def test_feed_names_the_command_of_each_change(journal: sqlite3.Connection) -> None:
    """A filter by table changes no command's name; a user is named only if the journal names one."""
    made = [Change(table, ("n",), INSERT, n, n, None, (n,)) for n, table in enumerate("abba")]

    def commit(tick: int, shares: tuple[int, ...], users: tuple[str, ...] = ()) -> None:
        shared = Transaction(
            *(Txid(14 + tick, "C"), {}, 0, 0, 0, "first", "serializable", "rows", AccessSet()),
            *(encode_changes(made), b"", (), 0, (("second", b""), ("third", b"")), shares, users),
        )
        journal.execute(
            "INSERT INTO bedrockish_journal VALUES (NULL, ?, 'C', 'C', ?, ?, 'rows', 0)", (14 + tick, tick, shared.body)
        )

    commit(1, (1, 2, 1))
    commit(2, (), ("ann", "bob", ""))
    commit(3, (1, 2, 2))
    commit(4, (1, 2, 1), ("ann", "", "b\x1bob"))
    journal.execute("UPDATE bedrockish_meta SET value = 40")
    found = [one for one in Feed().take(journal.execute(*Feed().question(100)).fetchall()) if one.joined]
    made_by = ("first", "second", "second", "third")
    assert [one.makers for one in found] == [made_by, (None,) * 4, (None,) * 4, made_by]
    told = [as_data(one) for one in found]
    assert [change["user"] for change in told[3]["changes"]] == ["ann", None, None, "b\x1bob"]
    assert [(one["user"], one["joined_users"]) for one in told] == [
        (None, [None, None]),
        ("ann", ["bob", None]),
        (None, [None, None]),
        ("ann", [None, "b\x1bob"]),
    ]
    assert [change["user"] for change in told[1]["changes"]] == [None] * 4, "nobody knows who made which"
    assert as_text(found[3]).splitlines()[0].endswith(" commands first of ann, second, third of b\\x1bob")
    assert [change["command"] for change in as_data(found[0])["changes"]] == ["first", "second", "second", "third"]
    assert [line.rpartition(" by ")[2] for line in as_text(found[0]).splitlines()[1:]] == list(found[0].makers)
    assert " by " not in as_text(found[1])
    changed = as_text(replace(found[1], kind=MEMBERS, changes=(), statements=()))
    assert changed.splitlines()[1:] == ["    members or users were changed"]
    feed = Feed(tables=["A"])
    only = [one for one in feed.take(journal.execute(*feed.question(100)).fetchall()) if one.joined]
    assert [one.makers for one in only] == [("first", "third"), (None, None), (None, None), ("first", "third")]


def test_feed_returns_a_commit_once_it_is_below_safe_time(journal: sqlite3.Connection) -> None:
    feed = Feed()
    read(journal, feed)
    assert read(journal, feed) == []
    journal.execute("UPDATE bedrockish_meta SET value = 40")
    assert read(journal, feed) == ["40.A"]


def test_cursor_of_a_filtered_feed_moves_past_skipped_changes(journal: sqlite3.Connection) -> None:
    feed = Feed(tables=["U"])
    found = list(feed.take(journal.execute(*feed.question(100)).fetchall()))
    assert [(str(one.cursor), [change.table for change in one.changes]) for one in found] == [
        ("10.A", ["u"]),
        ("20.B", ["u"]),
    ]
    assert str(feed.cursor) == "30.B"


def test_reader_behind_pruned_entries_gets_an_error_and_one_at_the_mark_does_not(journal: sqlite3.Connection) -> None:
    journal.execute("DELETE FROM bedrockish_journal WHERE clock <= 20")
    journal.execute("INSERT INTO bedrockish_pruned VALUES ('A', 2, x'', 20, 'A'), ('B', 1, x'', 20, 'B')")
    assert read(journal, Feed("20.B")) == ["30.B"]
    for cursor in (None, "10.A", "20.A"):
        feed = Feed(cursor)
        with pytest.raises(FeedPrunedError, match=r"begins after 20\.B.*export"):
            read(journal, feed)
        assert feed.cursor == parse_cursor(cursor)


def test_last_page_of_the_feed_is_marked(journal: sqlite3.Connection) -> None:
    feed = Feed()
    assert len(read(journal, feed, 4)) == 4
    assert not feed.is_last
    assert read(journal, feed, 4) == []
    assert feed.is_last
    assert feed.safe == 30


@pytest.mark.parametrize(
    "text",
    [
        "x",
        "1",
        "1-A",
        "-1.A",
        "1.5.A.",
        f"{1 << 63}.A",
        "1." + "A" * 65,
        "١x.A",
        "١.A",
        "1.A+",
        "1.A+x",
        "9" * 5000 + ".A",
    ],
)
def test_malformed_cursor_is_refused(text: str) -> None:
    if text == "1.5.A.":
        assert parse_cursor(text) == FeedCursor(1, "5.A.")  # odd, and harmless: it is after a leader of no such name
        return
    with pytest.raises(CursorError, match="cursor"):
        parse_cursor(text)


def test_feed_cursor_of_a_copy_skips_the_copied_commits(journal: sqlite3.Connection) -> None:
    """The copy has everything up to safe time, and some later commits."""
    cursor = cursor_of_copy(15, [(30, "B"), (20, "A")])
    assert str(cursor) == "15.~+20.A+30.B"
    assert parse_cursor(str(cursor)) == cursor
    assert parse_cursor(str(cursor)).seen == cursor.seen
    journal.execute("UPDATE bedrockish_meta SET value = 40")
    feed = Feed(str(cursor))
    assert read(journal, feed) == ["20.B+30.B", "40.A"]
    assert read(journal, Feed("20.B+30.B")) == ["40.A"], "stopped between, it goes on as well"
    assert read(journal, Feed("20.B")) == ["30.B", "40.A"]


def test_cursors_are_ordered_as_the_feed_is_and_survive_as_text() -> None:
    cursors = [FeedCursor(), FeedCursor(10, "A"), FeedCursor(10, "B"), FeedCursor(11, "A")]
    assert sorted(cursors, reverse=True) == cursors[::-1]
    assert [parse_cursor(str(cursor)) for cursor in cursors[1:]] == cursors[1:]


@pytest.mark.parametrize("body", [b"\xff", row(20, "B", "u")[4][:-3]])
async def test_unreadable_entry_raises_at_its_place_and_is_not_skipped(
    journal: sqlite3.Connection, body: bytes
) -> None:
    """Earlier entries are returned, and a repeated read fails at the same place."""
    journal.execute("UPDATE bedrockish_journal SET body = ? WHERE clock = 20 AND origin = 'B'", (body,))
    feed = Feed()
    assert read(journal, feed) == ["10.A", "20.A"]
    assert not feed.is_last
    for _ in range(2):
        with pytest.raises(FeedUnreadableError, match=r"at 20\.B .* after cursor 20\.A: .* journal verify"):
            read(journal, feed)
    page = journal.execute(*feed.question(100)).fetchall()
    with pytest.raises(DamagedError, match=r"20\.B"):
        _transactions_in(feed, page)

    class Node:
        async def submit(self, _request: object) -> Answer:
            return Answer(encode_results([Result(tuple("1234567"), page)]), Token())

    with pytest.raises(DamagedError, match=r"20\.B"):
        await reader_of(Node(), feed).page()
    journal.execute("UPDATE bedrockish_journal SET body = ? WHERE clock = 20 AND origin = 'B'", (row(20, "B", "u")[4],))
    assert read(journal, feed) == ["20.B", "30.B"]


def test_feed_reads_the_same_changes_one_by_one_and_page_by_page(journal: sqlite3.Connection) -> None:
    journal.execute("UPDATE bedrockish_journal SET tick = seq")
    journal.execute("INSERT INTO bedrockish_schema VALUES (5, 'A', 25, '')")  # its entry was removed
    page, alone = Feed(), Feed()
    for _ in range(3):
        place = journal.execute(*alone.question_of_one()).fetchall()
        question = alone.question_of_body(place)
        assert question is not None
        taken = alone.take(alone.filled(place, journal.execute(*question).fetchall()))
        assert taken == page.take(journal.execute(*page.question(1)).fetchall())
        assert not alone.is_last
    place = journal.execute(*alone.question_of_one()).fetchall()
    assert alone.question_of_body(place) is None
    with pytest.raises(FeedPrunedError):
        alone.take(place)
    place = journal.execute(*Feed().question_of_one()).fetchall()
    with pytest.raises(FeedPrunedError):
        Feed().take(Feed().filled(place, []))
