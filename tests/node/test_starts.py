"""The start of a process on a file: its record, the message to others, and its copy."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from bedrockish.core.protocol.records import Joining, encode_joining
from bedrockish.engine.engine import Engine, Founding
from bedrockish.engine.storage.rename_copy import relabel
from bedrockish.node.cluster.incarnations import OLDER_FILE, Incarnations
from bedrockish.node.cluster.membership import begin_on_file
from bedrockish.node.cluster.starts import STARTS, Start, read_starts
from bedrockish_journal.model.membership import Member, Membership

MEMBERS = Membership(0, {name: Member(name, f"h:{place}") for place, name in enumerate("AB", 1)})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.db"


def begin(path: Path, start: bytes, batches: int = 0) -> dict[str, object]:
    """Start as a process, write some batches, and be killed; return the file's last description of itself."""
    engine = Engine.open(path, founding=Founding("A", MEMBERS, "store-A"))
    info = begin_on_file(engine, start)
    for number in range(batches):
        engine.set_meta("cut", number)
        engine.flush()
    engine.sync()
    engine.close()
    return {**info, "batches": engine.batch.number}


def starts_of(info: dict[str, object]) -> list[Start]:
    return read_starts(info[STARTS])


def test_hello_lists_each_start_of_the_node_with_its_batch_count(path: Path) -> None:
    """The start is itself a batch, and is durable before the node announces it."""
    first = begin(path, b"one", batches=5)
    assert first["store"] == "store-A"
    assert (starts_of(first), first["batches"]) == ([(b"one", 0)], 6)
    second = begin(path, b"two")
    assert (starts_of(second), second["batches"]) == ([(b"one", 0), (b"two", 6)], 7)


def test_a_file_that_was_put_back_is_noticed_after_it_has_grown(path: Path) -> None:
    """A peer that has met the file before the loss notices it."""
    begin(path, b"one", batches=3)
    copy = path.read_bytes()
    known = Incarnations({}, lambda _name, _value: None)
    assert known.judge("A", begin(path, b"two", batches=3), MEMBERS) is None
    path.write_bytes(copy)
    refusal = known.judge("A", begin(path, b"three", batches=20), MEMBERS)
    assert refusal is not None
    assert refusal.code == OLDER_FILE


def test_file_relabelled_for_another_node_keeps_no_starts_and_no_lost_mark(path: Path) -> None:
    """The copy has neither the old owner's starts nor the mark of its lost commits; the file of A keeps both."""
    begin(path, b"one")
    engine = Engine.open(path, founding=None)
    engine.set_meta("lost", "some promise")
    engine.flush()
    engine.close()
    engine = Engine.open(path, founding=None)
    assert engine.recover().lost == "some promise"
    engine.close()
    relabel(path, "C", "store-C", encode_joining(Joining(MEMBERS, {})))
    with closing(sqlite3.connect(path)) as db:
        kept = {key for (key,) in db.execute("SELECT key FROM bedrockish_meta")}
    assert {"lost", STARTS} & kept == set()
    engine = Engine.open(path, founding=None)
    assert engine.recover().lost == ""
    assert starts_of(begin_on_file(engine, b"mine")) == [(b"mine", 0)]
    engine.close()
