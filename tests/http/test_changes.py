"""The change feed over HTTP: lines and events, filters, long polls, readers that are slow, late or somewhere else."""

import json
import socket
import time
from typing import Any

import pytest

from bedrockish_journal.feed.change_feed import parse_cursor
from tests.http.conftest import Asker
from tools.cluster import LocalCluster

pytestmark = pytest.mark.cluster

BOUND_S = 60.0


def lines(body: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in body.splitlines()]


def read(ask: Asker, options: str = "", **headers: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the transactions and the last line."""
    reply = ask(f"/changes?{options}", **headers)
    assert reply.status == 200, reply.body
    *found, last = lines(reply.body)
    return found, last


def all_of(ask: Asker, count: int, options: str = "") -> list[dict[str, Any]]:
    """Wait until the feed has so many transactions."""
    until = time.monotonic() + BOUND_S
    while len(found := read(ask, options)[0]) < count:
        assert time.monotonic() < until, f"{len(found)} of {count}"
        time.sleep(0.05)
    return found


@pytest.fixture(scope="module")
def shop(node: Asker) -> Asker:
    node.sql("CREATE TABLE item(id INTEGER PRIMARY KEY, name)", "CREATE TABLE note(text)")
    for number in range(6):
        node.sql(["INSERT INTO item VALUES (?, ?)", number, f"n{number}"])
    node.sql("INSERT INTO note VALUES ('x')")
    all_of(node, 9)
    return node


def test_feed_has_a_line_for_each_transaction_and_ends_with_the_cursor(shop: Asker) -> None:
    found, last = read(shop)
    assert [one["kind"] for one in found] == ["schema", "schema", *["rows"] * 7]
    row = {"table": "item", "before": None, "after": {"id": 0, "name": "n0"}}
    assert found[2]["changes"] == [{"op": "INSERT", "command": found[2]["command"], "user": None, **row}]
    assert last["cursor"] == found[-1]["cursor"]
    assert last["safe"] >= found[-1]["clock"]
    assert read(shop, f"after={last['cursor']}")[0] == []
    for place, one in enumerate(found):
        assert read(shop, f"after={one['cursor']}")[0] == found[place + 1 :]
        first, end = read(shop, f"limit={place + 1}")
        assert first == found[: place + 1]
        assert end["cursor"] == one["cursor"], "what was not taken comes next"


def test_filtered_feed_advances_its_cursor_past_skipped_changes(shop: Asker) -> None:
    found, last = read(shop, "table=note")
    assert [len(one["changes"]) for one in found] == [0, 0, 1]
    assert last["cursor"] == read(shop)[1]["cursor"]
    assert len(read(shop, "table=note&table=ITEM")[0]) == 9


def test_long_poll_returns_with_the_first_commit_or_at_its_limit(shop: Asker) -> None:
    after = read(shop)[1]["cursor"]
    assert read(shop, f"after={after}&wait=0.2")[0] == []
    shop.sql("INSERT INTO note VALUES ('later')")
    found, _ = read(shop, f"after={after}&wait=60")
    assert [change["after"] for change in found[0]["changes"]] == [{"text": "later"}]


def test_events_carry_the_cursor_as_their_id(shop: Asker) -> None:
    found, _ = read(shop)
    reply = shop("/changes?follow=false&limit=2", accept="text/event-stream")
    assert reply.headers["content-type"].startswith("text/event-stream")
    events = reply.body.decode().split("\n\n")
    assert events[0].splitlines()[0] == f"id: {found[0]['cursor']}"
    assert json.loads(events[0].splitlines()[1].removeprefix("data: ")) == found[0]
    assert events[2].startswith("event: place\n")
    again = shop("/changes?follow=false&limit=1", accept="text/event-stream", last_event_id=found[0]["cursor"])
    assert again.body.decode().startswith(f"id: {found[1]['cursor']}")


def test_event_stream_continues_after_the_header_last_event_id(shop: Asker) -> None:
    """An ``EventSource`` connects again with the URL of its first request, so ``after`` is older than the header."""
    found, _ = read(shop)
    path = f"/changes?follow=false&limit=1&after={found[0]['cursor']}"
    again = shop(path, accept="text/event-stream", last_event_id=found[3]["cursor"])
    assert again.body.decode().startswith(f"id: {found[4]['cursor']}")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ("after=x", "is not a cursor"),
        (f"after={'9' * 5000}.A", "is not a cursor"),
        ("before=1.A", "there is no option 'before'"),
        ("after=1.A&after=2.A", "given twice"),
        ("follow=maybe", "follow should be"),
        ("wait=long", "wait should be"),
        ("wait=1e9", "wait should be"),
        ("limit=-1", "limit"),
        ("hold=", "1 to 100 characters"),
    ],
)
def test_wrong_options_of_the_feed_are_named(shop: Asker, options: str, text: str) -> None:
    reply = shop(f"/changes?{options}")
    assert reply.status == 400
    assert text in reply.json["message"]


def test_reader_that_does_not_read_delays_no_other(shop: Asker) -> None:
    """Back-pressure: the node writes until the connection is full, waits, and goes on when the reader does."""
    big = "x" * 100_000
    for number in range(60):
        shop.sql(["INSERT INTO note VALUES (?)", f"{number} {big}"])
    with socket.create_connection(("127.0.0.1", shop.port), timeout=BOUND_S) as reader:
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        reader.sendall(b"GET /changes?follow=true&table=note HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        began = reader.recv(1_000)
        assert b"200" in began.splitlines()[0]
        for number in range(5):
            assert shop.sql(["INSERT INTO item VALUES (?, ?)", 100 + number, "meanwhile"]).status == 200
        taken = b""
        while b'"59 ' not in taken:
            piece = reader.recv(1 << 16)
            assert piece, "the node has closed the connection"
            taken = taken[-100:] + piece
    assert shop("/livez").status == 200


def test_hold_keeps_the_journal_and_is_shown_in_the_status(shop: Asker) -> None:
    after = read(shop, "limit=3")[1]["cursor"]
    read(shop, f"after={after}&limit=1&hold=poller")
    assert shop("/status").json["journal"]["holds"] == {"poller": parse_cursor(after).clock}


def test_the_cursor_of_a_killed_node_is_valid_at_another_node(three: LocalCluster) -> None:
    """Each page of one transaction comes from the next node, and one node dies: every transaction arrives once."""
    asks = [Asker(node.http_port or 0, three) for node in three.nodes]
    asks[0].sql("CREATE TABLE seen(id INTEGER PRIMARY KEY)")
    for number in range(12):
        asks[number % 3].sql(["INSERT INTO seen VALUES (?)", number])
    for ask in asks:
        all_of(ask, 12, "table=seen")
    whole = all_of(asks[0], 13)
    three.nodes[1].kill()
    try:
        found: list[dict[str, Any]] = []
        alive, cursor = [asks[0], asks[2]], ""
        while len(found) < len(whole):
            page, last = read(alive[len(found) % 2], f"limit=1&wait=60&after={cursor}")
            found += page
            cursor = last["cursor"]
    finally:
        three.nodes[1].start()
    assert found == whole
