"""The ring of recent messages: off unless a client reads it, bounded, and with the same transactions at every node."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from bedrockish.access_sets.key_encoding import table_key
from bedrockish.core.protocol import effects as do
from bedrockish.core.protocol.events import Received
from bedrockish.core.protocol.messages import Approve, Gossip, Reason, Reject
from bedrockish.node.admin.trace_buffer import EVENTS_A_SECOND, EVENTS_MAX, PATIENCE_S, REPLY_EVENTS_MAX, TraceBuffer
from bedrockish_journal.model.transaction import Txid


class Clock:
    """Time that a test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr("bedrockish.node.admin.trace_buffer.time.monotonic", lambda: self.now)


def make(node: str = "A") -> TraceBuffer:
    timelines, membership = SimpleNamespace(applied={"A": 3}), SimpleNamespace(nodes=("A", "B"))
    state = SimpleNamespace(me=node, timelines=timelines, roster=SimpleNamespace(membership=membership))
    return TraceBuffer(cast(Any, state))


def txid(ms: int, leader: str = "B") -> Txid:
    return Txid(ms << 22, leader)


def test_an_event_is_told_once_with_the_printer_s_line() -> None:
    watch = make()
    assert not watch.is_on
    first = watch.read(0)
    assert watch.is_on
    assert (first["node"], first["last"], first["events"]) == ("A", 0, [])
    reject = Reject(txid(7), Reason.FOR, txid(6, "A"), table_key("account", 17), 9)
    watch.note(do.Send("B", reject))
    watch.note(Received("B", Approve(txid(8, "A"), 1, 9)))
    watch.note(do.Send("B", Gossip({}, 0, 0, 0, "", 0, 0)))
    found = watch.read(0)
    sent, heard = found["events"]
    assert sent[2:6] == ["reject", str(txid(7)), "A", "B"]
    assert sent[6] == f"A3: REJECT {txid(7)} FOR {txid(6, 'A')} -> B"
    assert sent[7] == {"reason": "FOR", "other": str(txid(6, "A")), "object": "table account", "key": "17"}
    assert heard[2:6] == ["approve", str(txid(8, "A")), "B", "A"]
    assert heard[6] == f"A3: hears B: APPROVE {txid(8, 'A')}"
    assert watch.read(found["last"])["events"] == []
    assert len(watch.read(found["last"] + 100)["events"]) == 2  # the number is from an earlier process


def test_watch_ends_when_no_client_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, watch = Clock(monkeypatch), make()
    watch.read(0)
    watch.note(do.Send("B", Approve(txid(1), 1, 1)))
    clock.now += PATIENCE_S + 2
    watch.note(do.Send("B", Approve(txid(2), 1, 1)))
    assert not watch.is_on


def test_busy_nodes_record_the_same_part_of_the_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    kept = []
    for node in "AB":
        watch = make(node)
        watch.read(0)
        for second in range(3):
            clock.now = 2000.0 + second
            watch.read(0)
            for number in range(10 * EVENTS_A_SECOND):
                watch.note(do.Send("C", Approve(txid(number % 1000 + 1000 * second, "C"), number, number)))
        found = [event for event in watch.read(0)["events"] if int(event[3][2:], 16) >> 22 >= 2000]
        assert len(watch.read(0)["events"]) <= REPLY_EVENTS_MAX <= EVENTS_MAX
        assert 0 < len(found) <= 1.1 * EVENTS_A_SECOND
        kept.append({event[3] for event in found})
    assert kept[0] == kept[1]
