"""Tampered journals: each manipulation, and the law that must detect it.

The manipulations are those of an attacker who knows the format: a changed entry is hashed again, in every file if need
be, so that the chain alone shows nothing. ``SEEN`` are the tamperings that a law finds; ``UNSEEN`` are those that none
can, because all files agree and nothing in them speaks against it: only something outside of the files could, as an
anchor does, but for the ``UNANCHORED``.
"""

import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import cbor2

from bedrockish_journal.model.transaction import DIGEST_BYTES, MEMBERS, ROWS, SCHEMA, head
from bedrockish_journal.model.vector import covers
from tests.journal.forger import (
    ACCESS_SET,
    ACTIVATES,
    ADOPTED,
    AFTER,
    CHANGES,
    CLOCK,
    CLOCK_IN_BODY,
    COMMAND,
    CONFIG,
    ISOLATION,
    JOINED,
    MIDDLE,
    QUORUM,
    RESULT,
    ROLLBACKS,
    SAFE,
    SCHEMA_SEEN,
    SHARES,
    TICK,
    USERS,
    Forger,
    Row,
)
from tests.journal.world import World

Files = dict[str, Forger]
Deed = Callable[[Files], None]


def everywhere(deed: Callable[[Forger], None]) -> Deed:
    """Do it to every file."""

    def do(files: Files) -> None:
        for file in files.values():
            deed(file)

    return do


def in_b(deed: Callable[[Forger], None]) -> Deed:
    """Make the change in the file of B alone."""
    return lambda files: deed(files["B"])


def led(file: Forger, *, seen: str = "B", least: int = 2) -> Row:
    """Return an entry of A's own that had seen so much of another node."""
    return next(r for r in file.rows("A") if r.label[ADOPTED] is None and r.body[AFTER].get(seen, 0) >= least)


def sole(file: Forger) -> list[Row]:
    """Return the entries of A that changed rows and were not adopted."""
    every = file.rows()
    labels = Counter((row.clock, row.body[2]) for row in every)
    return [r for r in every if r.leader == "A" and r.body[9] == ROWS and labels[r.clock, r.body[2]] == 1]


def other_approvers(file: Forger) -> None:
    row = led(file)
    row.label[QUORUM] = {"A": row.tick, "B": row.body[AFTER]["B"] - 1}
    file.write(row)


def alone(file: Forger) -> None:
    row = file.row("A", MIDDLE)
    row.label[QUORUM] = {"A": row.tick}
    file.write(row)


def too_late(file: Forger) -> None:
    """B approves the entry at a tick at which B has long applied it."""
    row = led(file)
    row.label[QUORUM]["B"] = file.rows("B")[-1].tick
    file.write(row)


def twice(file: Forger) -> None:
    first, second = sole(file)[:2]
    second.body[COMMAND] = first.body[COMMAND]
    file.write(second, command=first.body[COMMAND])


def order(file: Forger) -> None:
    """``seq`` is not hashed."""
    later = next(row for row in file.rows("B") if row.body[AFTER].get("A", 0) > 2)
    earlier = file.row("A", later.body[AFTER]["A"])
    for table in ("bedrockish_journal", "bedrockish_joined"):
        for old, new in ((earlier.seq, -1), (later.seq, earlier.seq), (-1, later.seq)):
            file.db.execute(f"UPDATE {table} SET seq = ? WHERE seq = ?", (new, old))


def dropped(file: Forger) -> None:
    row = [row for row in file.rows("A") if row.body[AFTER].get("B", 0) > 4][-1]
    row.body[AFTER]["B"] = 1
    file.write(row)


def cut(leader: str) -> Callable[[Forger], None]:
    return lambda file: file.run("DELETE FROM bedrockish_journal WHERE leader = ? AND tick > ?", leader, MIDDLE)


def back_dated(file: Forger) -> None:
    row = [row for row in file.rows("A") if row.body[AFTER].get("B", 0) > 2][-1]
    clock = file.row("B", row.body[AFTER]["B"]).clock
    row.body[CLOCK_IN_BODY] = row.label[CLOCK] = clock
    file.write(row, clock=clock)


def demote(file: Forger) -> None:
    file.founding(lambda members: members["C"].__setitem__(1, False))


def invented(file: Forger) -> None:
    """Add an entry to A's timeline that A does not have, well formed, with a chain and a quorum."""
    last = file.rows("A")[-1]
    heads = dict(file.db.execute("SELECT leader, max(tick) FROM bedrockish_journal GROUP BY leader"))
    clock = max(row.clock for row in file.rows()) + 1
    body = [*last.body[:14]]
    body[CLOCK_IN_BODY], body[2], body[AFTER], body[COMMAND] = clock, "A", dict(sorted(heads.items())), "invented"
    label = [*last.label]
    label[TICK], label[CLOCK], label[4], label[ADOPTED] = last.tick + 1, clock, "A", None
    label[QUORUM] = {"A": last.tick + 1, "B": heads["B"], "C": heads["C"]}
    packed = cbor2.dumps(label), cbor2.dumps(body)
    digest = sha256(last.hash + packed[0] + packed[1]).digest()
    file.run(
        "INSERT INTO bedrockish_journal(leader, tick, clock, origin, command, kind, repeat, applied_ms, label, body,"
        " prev, hash) VALUES ('A', ?, ?, 'A', 'invented', ?, 0, 1, ?, ?, ?, ?)",
        *(last.tick + 1, clock, body[9], *packed, last.hash, digest),
    )


def unlisted(file: Forger) -> None:
    file.run("DELETE FROM bedrockish_joined WHERE seq = ?", file.joined().seq)


def never_joined(file: Forger) -> None:
    """Remove a command that shared a transaction from the bytes, but not from the table."""
    row = file.joined()
    del row.body[14:]
    file.write(row)


def never_joined_nor_listed(file: Forger) -> None:
    unlisted(file)
    row = next(row for row in file.rows("A") if len(row.body) > JOINED and not row.repeat and row.body[JOINED])
    del row.body[14:]
    file.write(row)


def more_money(file: Forger) -> None:
    """A row that the transaction did not write, changed by it all the same, and in the table."""
    row = max((row for row in file.rows() if row.body[9] == ROWS and not row.repeat), key=lambda row: row.clock)
    tables, changes = cbor2.loads(row.body[CHANGES])
    tables.append(["account", ["id", "owner", "balance", "extra", "twice"]])
    before = [7000, "me", 0.0, None, 0.0]
    file.db.execute("INSERT INTO account(id, owner, balance) VALUES (7000, 'me', 1000000.0)")
    changes.append([len(tables) - 1, "INSERT", 7000, 7000, None, [*before[:2], 1000000.0, None, 2000000.0]])
    row.body[CHANGES] = cbor2.dumps([tables, changes])
    file.write(row)


def another_pair(file: Forger) -> None:
    """Add a row to a table WITHOUT ROWID as one more change of the last transaction."""
    row = max((row for row in file.rows() if row.body[9] == ROWS and not row.repeat), key=lambda row: row.clock)
    tables, changes = cbor2.loads(row.body[CHANGES])
    tables.append(["pair", ["left", "right", "value"]])
    changes.append([len(tables) - 1, "INSERT", None, None, None, ["money", 1, 1000000]])
    file.db.execute("INSERT INTO pair VALUES ('money', 1, 1000000)")
    row.body[CHANGES] = cbor2.dumps([tables, changes])
    file.write(row)


def forgets(*places: int) -> Callable[[Forger], None]:
    def do(file: Forger) -> None:
        rows = file.rows()
        assert any(row.body[ACCESS_SET][place] for row in rows for place in places), "the tampering changes nothing"
        for row in rows:
            for place in places:
                row.body[ACCESS_SET][place] = []
            file.put(row)
        for leader in {row.leader for row in rows}:
            file.hash_again(leader)

    return do


def pruned(file: Forger, digest: bytes | None = None) -> None:
    """The beginning of A's timeline is gone, and a mark says that its node removed it."""
    gone = [row for row in file.rows("A") if row.tick <= MIDDLE]
    file.run("DELETE FROM bedrockish_journal WHERE leader = 'A' AND tick <= ?", MIDDLE)
    file.db.execute("DELETE FROM bedrockish_joined WHERE seq NOT IN (SELECT seq FROM bedrockish_journal)")
    last = max(gone, key=lambda row: row.clock)
    values = ("A", MIDDLE, digest or gone[-1].hash, last.clock, last.body[2])
    file.db.execute("CREATE TABLE IF NOT EXISTS bedrockish_pruned(leader, tick, hash, clock, origin)")
    file.run("INSERT INTO bedrockish_pruned VALUES (?, ?, ?, ?, ?)", *values)


def pruned_otherwise(file: Forger) -> None:
    pruned(file, b"x" * 32)
    file.db.execute("UPDATE bedrockish_journal SET prev = ? WHERE leader = 'A' AND tick = ?", (b"x" * 32, MIDDLE + 1))
    file.hash_again("A")


def swapped(file: Forger) -> None:
    """Exchange the changes of two entries that conflict in a row; clocks, commands and bases stay."""
    every = sole(file)
    one, other = next(
        (one, other)
        for place, one in enumerate(every)
        for other in every[place + 1 :]
        if one.body[CHANGES] != other.body[CHANGES] and set(one.body[ACCESS_SET][2]) & set(other.body[ACCESS_SET][2])
    )
    for place in (ACCESS_SET, CHANGES):
        one.body[place], other.body[place] = other.body[place], one.body[place]
    file.put(one)
    file.put(other)
    file.hash_again("A")


def met(file: Forger) -> None:
    """Let one of the last two entries, which are concurrent, also write the other's row."""
    one = max(file.rows("A"), key=lambda row: row.clock)
    other = max(file.rows("B"), key=lambda row: row.clock)
    assert not covers(other.body[AFTER], {"A": one.tick})
    other.body[ACCESS_SET][2] = sorted([*other.body[ACCESS_SET][2], *one.body[ACCESS_SET][2]])
    file.write(other)


def ranged(file: Forger) -> None:
    """Let one of them also read a range in which the other wrote."""
    one = max(file.rows("A"), key=lambda row: row.clock)
    other = max(file.rows("B"), key=lambda row: row.clock)
    (key, *_) = one.body[ACCESS_SET][2]
    other.body[ACCESS_SET][1] = [[key, key + b"\0"]]
    file.write(other)


def of_users(file: Forger) -> Row:
    return next(row for row in file.rows() if len(row.body) > USERS)


def shared_otherwise(*shares: int) -> Callable[[Forger], None]:
    def do(file: Forger) -> None:
        row = of_users(file)
        assert row.body[SHARES] != [*shares]
        row.body[SHARES] = [*shares]
        file.write(row)

    return do


def anothers(file: Forger) -> None:
    """Put Ann's name in place of Bob's."""
    row = of_users(file)
    row.body[USERS].reverse()
    file.write(row)


def unknown_user(file: Forger) -> None:
    row = of_users(file)
    row.body[USERS] = ["mallory"] * len(row.body[USERS])
    file.write(row)


def role(said: list[Any], user: str, number: int) -> None:
    said[5][user][1] = number


def of_version_2(file: Forger) -> None:
    row = file.row("A", MIDDLE)
    row.body[0] = 2
    file.write(row)


def labels_exchanged(file: Forger) -> None:
    """Exchange the two labels of an adopted transaction, so that the first counts as the repeat."""
    second = next(row for row in file.rows() if row.repeat)
    first = next(row for row in file.rows() if row.clock == second.clock and not row.repeat)
    for row, repeat in ((first, 1), (second, 0)):
        file.run("UPDATE bedrockish_journal SET repeat = ? WHERE seq = ?", repeat, row.seq)
    file.db.execute("UPDATE bedrockish_joined SET seq = ? WHERE seq = ?", (second.seq, first.seq))


def held_by_one(file: Forger) -> None:
    row = next(row for row in file.rows() if row.label[ADOPTED] is not None)
    row.label[QUORUM] = {row.leader: row.label[QUORUM][row.leader]}
    file.write(row)


def counted_by_the_older(file: Forger) -> None:
    row = of_users(file)
    assert row.body[CONFIG] == 3
    row.body[CONFIG] = 2
    file.write(row)


def pruned_later(file: Forger) -> None:
    """Mark later entries as removed, so that the law ``conflict`` would skip them."""
    pruned(file)
    file.run("UPDATE bedrockish_pruned SET clock = ?", file.of_kind(MEMBERS).clock)


def pruned_whole(file: Forger) -> None:
    """Remove a whole timeline, with its very last entry as the mark."""
    last = file.rows("C")[-1]
    file.run("DELETE FROM bedrockish_journal WHERE leader = 'C'")
    file.db.execute("DELETE FROM bedrockish_joined WHERE seq NOT IN (SELECT seq FROM bedrockish_journal)")
    file.run("INSERT INTO bedrockish_pruned VALUES ('C', ?, ?, ?, 'C')", last.tick, last.hash, last.clock)


def defined_otherwise(file: Forger) -> None:
    row = file.of_kind(SCHEMA)
    row.body[CHANGES] = cbor2.dumps([text.replace("extra", "extra REAL") for text in cbor2.loads(row.body[CHANGES])])
    file.write(row)


def in_force_later(file: Forger) -> None:
    row = file.of_kind(SCHEMA)
    row.body[ACTIVATES:] = [max(one.clock for one in file.rows()) + 1]
    for one in file.rows():
        one.body[SCHEMA_SEEN] = 0
        file.put(row if one.seq == row.seq else one)
    for leader in "ABC":
        file.hash_again(leader)
    file.write(row)


def approved_by_another(file: Forger) -> None:
    """Put C in place of B in a quorum: B had seen no more than C, so no other field contradicts it."""
    row = led(file, seen="C")
    assert row.label[QUORUM].keys() == {"A", "B", "C"}
    del row.label[QUORUM]["B"]
    file.write(row)


def in_other_bytes(file: Forger) -> None:
    """Encode the same fields as no node does: a zero in two bytes."""
    row = file.row("A", MIDDLE)
    packed = [cbor2.dumps(item) for item in row.body]
    assert packed[SCHEMA_SEEN] == b"\1"
    packed[SCHEMA_SEEN] = b"\x18\1"
    file.put(row, body=head(4, len(packed)) + b"".join(packed))
    file.hash_again("A")


def one_more_field(file: Forger) -> None:
    row = of_users(file)
    row.body += [[bytes(DIGEST_BYTES)] * len(row.body[USERS]), "of no release"]
    file.write(row)


def made_admin(file: Forger) -> None:
    file.membership(lambda said: said[5]["bob"].__setitem__(1, 4))


def order_as_may_be(file: Forger) -> None:
    """Swap the last two entries, which are concurrent: either order is valid."""
    one, other = (max(file.rows(leader), key=lambda row: row.clock).seq for leader in "AB")
    for old, new in ((one, -1), (other, one), (-1, other)):
        file.run("UPDATE bedrockish_journal SET seq = ? WHERE seq = ?", new, old)


def forgotten(file: Forger) -> None:
    """The beginning was removed, and the ids of its commands with it."""
    pruned(file)
    file.db.execute("CREATE TABLE IF NOT EXISTS bedrockish_past(command, clock, origin)")
    file.db.execute("DELETE FROM bedrockish_past")


def flip(file: Forger) -> None:
    (body,) = file.db.execute(
        "SELECT body FROM bedrockish_journal WHERE leader = 'A' AND tick = ?", (MIDDLE,)
    ).fetchone()
    where = "WHERE leader = 'A' AND tick = ?"
    file.run(f"UPDATE bedrockish_journal SET body = ? {where}", body[:-1] + bytes([body[-1] ^ 1]), MIDDLE)


def replaced(file: Forger) -> None:
    """Change an answer in an entry and hash this entry again, but not the later ones."""
    row = file.row("A", MIDDLE)
    row.body[RESULT] = b"another"
    label, body = cbor2.dumps(row.label), cbor2.dumps(row.body)
    file.put(row, hash=sha256(row.prev + label + body).digest())


def answer(file: Forger) -> None:
    row = file.row("A", MIDDLE)
    row.body[RESULT] = b"another"
    file.write(row)


def post_dated(file: Forger) -> None:
    row = file.rows("A")[-1]
    clock = row.clock + (1 << 40)
    row.body[CLOCK_IN_BODY] = row.label[CLOCK] = clock
    file.write(row, clock=clock)


def column(sql: str) -> Callable[[Forger], None]:
    return lambda file: file.run(f"UPDATE bedrockish_journal SET {sql} WHERE leader = 'A' AND tick = {MIDDLE}")


def adopted(file: Forger) -> None:
    row = file.row("A", MIDDLE)
    row.label[ADOPTED] = "C"
    file.write(row)


def unreadable(file: Forger) -> None:
    row = file.row("A", MIDDLE)
    row.body[CHANGES] = "no bytes"
    file.write(row)


def not_changes(file: Forger) -> None:
    row = next(row for row in file.rows("A") if row.body[9] == ROWS)
    row.body[CHANGES] = cbor2.dumps("no changes")
    file.write(row)


def doubled(file: Forger) -> None:
    names = "leader, tick, clock, origin, command, kind, applied_ms, label, body, prev, hash"
    file.run(
        f"INSERT INTO bedrockish_journal({names}, repeat) SELECT {names}, 1 FROM bedrockish_journal "
        f"WHERE leader = 'A' AND tick = {MIDDLE}"
    )


def repeats_otherwise(file: Forger) -> None:
    row = next(row for row in file.rows() if row.repeat)
    row.body[RESULT] = b"another"
    file.write(row)


def rows_undone(file: Forger) -> None:
    """Remove the last entry of all and its effects without a trace."""
    row = max(file.rows(), key=lambda row: row.clock)
    (table, _), ((_, op, rowid, *_),) = (lambda tables, rows: (tables[0], rows))(*cbor2.loads(row.body[CHANGES]))
    assert (table, op) == ("note", "INSERT")
    file.run("DELETE FROM note WHERE rowid = ?", rowid)
    file.run("DELETE FROM bedrockish_journal WHERE seq = ?", row.seq)


def stranger(file: Forger) -> None:
    file.founding(lambda members: members.__setitem__("X", ["elsewhere:1", False, "x"]))


def field(place: int, value: Any) -> Callable[[Forger], None]:
    """Change a field of a body in the middle of A's timeline; ``value`` may compute it from the entry."""

    def do(file: Forger) -> None:
        row = next(row for row in sole(file) if row.tick >= MIDDLE)
        row.body[place] = value(row, file) if callable(value) else value
        file.write(row)

    return do


def given_up(leader: str) -> Callable[[Forger], None]:
    def do(file: Forger) -> None:
        row = next(row for row in sole(file) if row.tick >= MIDDLE)
        other = next(row for row in file.rows(leader) if row.label[ADOPTED] is None)
        row.body[ROLLBACKS] = [[other.clock, other.body[2]]]
        file.write(row)

    return do


def safe_too_high(file: Forger) -> None:
    """An entry claims that its snapshot was safe up to another node's commit, which it had not seen."""
    for row in sole(file):
        for other in file.rows("B"):
            unseen = other.tick > row.body[AFTER].get("B", 0)
            if (
                unseen
                and row.body[SAFE] < other.clock < row.clock
                and not other.repeat
                and other.label[ADOPTED] is None
            ):
                row.body[SAFE] = other.clock
                file.write(row)
                return
    raise AssertionError("the tampering changes nothing")


def in_meta(key: str, value: Any) -> Callable[[Forger], None]:
    return lambda file: file.run("INSERT OR REPLACE INTO bedrockish_meta VALUES (?, ?)", key, value)


def void(file: Forger) -> None:
    """Mark the last entry as applied without its changes by an operator's order, and remove its row."""
    row = max(file.rows(), key=lambda row: row.clock)
    (_, ((_, op, rowid, *_),)) = cbor2.loads(row.body[CHANGES])
    assert op == "INSERT"
    file.run("DELETE FROM note WHERE rowid = ?", rowid)
    in_meta(f"void:{row.body[2]}-{row.clock:x}", 1)(file)


def past(command: str | None, clock: int) -> Callable[[Forger], None]:
    def do(file: Forger) -> None:
        file.db.execute("CREATE TABLE IF NOT EXISTS bedrockish_past(command, clock, origin)")
        file.run(
            "INSERT INTO bedrockish_past(command, clock, origin) VALUES (?, ?, 'A')",
            command or file.row("A", MIDDLE).body[COMMAND],
            clock,
        )

    return do


def packed(leader: str) -> Callable[[Forger], None]:
    """A pack of places that are not packed, or not there at all."""

    def do(file: Forger) -> None:
        file.db.execute("CREATE TABLE IF NOT EXISTS bedrockish_packed(leader, first, last, prev, hash, entries)")
        file.run("INSERT INTO bedrockish_packed VALUES (?, 1, 5, ?, ?, x'00')", leader, b"0" * 32, b"1" * 32)

    return do


def integers_as_reals(file: Forger) -> None:
    """A column of integers gets a real number, which SQLite would not keep."""
    for row in sole(file):
        tables, changes = cbor2.loads(row.body[CHANGES])
        for change in changes:
            if tables[change[0]][0] == "note" and change[5] is not None and type(change[5][1]) is int:
                change[5][1] = float(change[5][1])
                row.body[CHANGES] = cbor2.dumps([tables, changes])
                file.write(row)
                return
    raise AssertionError("the tampering changes nothing")


def index_that_lacks_a_row(file: Forger) -> None:
    file.db.execute("PRAGMA writable_schema = ON")
    file.run("UPDATE sqlite_master SET sql = sql || ' WHERE id < 0' WHERE name = 'account_owner'")
    file.db.commit()
    path = file.db.execute("PRAGMA database_list").fetchone()[2]
    file.db.close()
    file.db = sqlite3.connect(path)
    file.db.execute("REINDEX account_owner")
    file.db.execute("PRAGMA writable_schema = ON")
    file.run("UPDATE sqlite_master SET sql = replace(sql, ' WHERE id < 0', '') WHERE name = 'account_owner'")


def makes(what: str) -> Callable[[Forger], None]:
    def do(file: Forger) -> None:
        file.db.execute(f"CREATE {what}")

    return do


def edited_from_the_beginning(file: Forger) -> None:
    """Edit a row, and claim that the cluster began with tables, so that the journal cannot contain the row."""
    file.run("UPDATE note SET text = 'x'")
    in_meta("began_with", 1)(file)


def retold(file: Forger) -> None:
    """Change the whole history of the last row, in every image of it, and the row itself."""
    row = max(file.rows(), key=lambda row: row.clock)
    tables, changes = cbor2.loads(row.body[CHANGES])
    changes[0][5][0] = "retold"
    row.body[CHANGES] = cbor2.dumps([tables, changes])
    file.run("UPDATE note SET text = 'retold' WHERE rowid = ?", changes[0][2])
    file.write(row)


def other_id(file: Forger) -> None:
    row = sole(file)[-1]
    row.body[COMMAND] = "another-id"
    file.write(row, command="another-id")


def ids_exchanged(file: Forger) -> None:
    row = file.joined()
    first, (joined, *_) = row.body[COMMAND], row.body[JOINED]
    row.body[COMMAND], joined[0] = joined[0], first
    file.run("UPDATE bedrockish_joined SET command = ? WHERE command = ?", first, row.body[COMMAND])
    file.write(row, command=row.body[COMMAND])


def less_seen(file: Forger) -> None:
    """Take one commit out of the base of the last entry, which did not conflict with it."""
    row = max(file.rows("B"), key=lambda row: row.clock)
    row.body[AFTER]["C"] -= 1
    row.body[SAFE] = 0
    file.write(row)


SEEN: dict[str, tuple[str, Deed]] = {
    "an undecodable body": ("bytes", everywhere(unreadable)),
    "an entry of a later version": ("bytes", everywhere(of_version_2)),
    "more changes of a command than there are": ("bytes", everywhere(shared_otherwise(1, 2))),
    "undecodable changes": ("writes", everywhere(not_changes)),
    "a changed column": ("columns", in_b(column("command = 'another'"))),
    "a joined command that is not listed": ("columns", in_b(unlisted)),
    "a listed command that is not joined": ("columns", everywhere(never_joined)),
    "a false adoption": ("label", everywhere(adopted)),
    "a removed entry": (
        "density",
        in_b(lambda f: f.run(f"DELETE FROM bedrockish_journal WHERE leader='A' AND tick={MIDDLE}")),
    ),
    "an entry twice": ("density", in_b(doubled)),
    "a timeline removed to its last entry": ("density", everywhere(pruned_whole)),
    "a flipped bit": ("hash", in_b(flip)),
    "an entry hashed again alone": ("link", in_b(replaced)),
    "another order of application": ("causality", in_b(order)),
    "the end of one timeline cut everywhere": ("causality", everywhere(cut("A"))),
    "a clock before those in the base": ("clock", everywhere(back_dated)),
    "a removal dated later": ("clock", everywhere(pruned_later)),
    "a dropped dependency": ("closure", everywhere(dropped)),
    "a quorum of one": ("quorum", everywhere(alone)),
    "an adoption of a transaction that only one node held": ("quorum", everywhere(held_by_one)),
    "approvals counted by the previous membership": ("quorum", everywhere(counted_by_the_older)),
    "an approval older than the base": ("approval", everywhere(other_approvers)),
    "an approval dated later than possible": ("approval", everywhere(too_late)),
    "a founder demoted in one file": ("members", in_b(demote)),
    "a membership left out": ("members", everywhere(lambda f: f.membership(lambda said: said.__setitem__(0, 4)))),
    "a timeline retired that goes on": (
        "members",
        everywhere(lambda f: f.membership(lambda said: said.__setitem__(4, {"C": 3}))),
    ),
    "a commit marked as a repeat": ("txid", in_b(column("repeat = 1"))),
    "a repeat with different content": ("txid", everywhere(repeats_otherwise)),
    "a label and its repeat exchanged": ("txid", in_b(labels_exchanged)),
    "a command twice": ("command", everywhere(twice)),
    "money made outside the write set": ("writes", everywhere(more_money)),
    "a row without rowid outside the write set": ("writes", everywhere(another_pair)),
    "write sets emptied": ("writes", everywhere(forgets(0, 1, 2, 3))),
    "a changed answer in one file": ("fork", in_b(answer)),
    "a forged mark of removal": ("fork", in_b(pruned_otherwise)),
    "an entry that its leader lacks": ("lost", in_b(invented)),
    "the end of its own timeline cut at a node": ("lost", lambda files: cut("A")(files["A"])),
    "two concurrent writes of one row": ("conflict", everywhere(met)),
    "a range that is read and written concurrently": ("conflict", everywhere(ranged)),
    "payloads exchanged": ("tables", everywhere(swapped)),
    "a schema in force later": ("tables", everywhere(in_force_later)),
    "a changed table definition": ("tables", everywhere(defined_otherwise)),
    "a row edited without a journal entry": ("tables", everywhere(lambda f: f.run("UPDATE note SET text = 'x'"))),
    "an unknown isolation": ("bytes", everywhere(field(ISOLATION, "whatever"))),
    "a pack of unpacked places": ("columns", in_b(packed("A"))),
    "a pack of a missing timeline": ("columns", in_b(packed("Z"))),
    "the file of another node": ("members", in_b(in_meta("store", "store of A"))),
    "a stranger among the founders, without a vote": ("members", everywhere(lambda file: stranger(file))),
    "a user made admin by another change": (
        "members",
        everywhere(lambda f: f.membership(lambda said: role(said, "ann", 4))),
    ),
    "an unknown role": ("members", everywhere(lambda f: f.membership(lambda said: role(said, "bob", 9)))),
    "a password changed by another change": (
        "members",
        everywhere(lambda f: f.membership(lambda said: said[5]["ann"].__setitem__(0, "mine"))),
    ),
    "a release level that falls": ("members", everywhere(lambda f: f.membership(lambda said: said.__setitem__(3, 1)))),
    "a changed cluster id": ("members", everywhere(lambda f: f.membership(lambda said: said.__setitem__(2, "other")))),
    "a changed address of a member": (
        "members",
        everywhere(lambda f: f.membership(lambda said: said[1]["B"].__setitem__(0, "evil:1"))),
    ),
    "a user who disappears without a removal": (
        "members",
        everywhere(lambda f: f.membership(lambda said: said[5].pop("ann"))),
    ),
    "a beginning with tables, by one file": ("members", in_b(in_meta("began_with", 1))),
    "a command of a user that was removed": (
        "users",
        everywhere(lambda f: f.membership(lambda said: said[5].__setitem__("ann", None))),
    ),
    "a reader who wrote": ("users", everywhere(lambda f: f.membership(lambda said: role(said, "bob", 1)))),
    "a present command listed as removed": ("command", in_b(past(None, 0))),
    "a removed command without a removal": ("command", in_b(past("pay-4711", 5))),
    "a commit that one file has without its rows": ("void", in_b(void)),
    "a commit that all files have without its rows": ("void", everywhere(void)),
    "a resolution that a file does not follow": (
        "void",
        everywhere(lambda f: f.membership(lambda said: said.extend([[], [[f.row("A", MIDDLE).clock, "A"]]]))),
    ),
    "a safe time above the base": ("safe", everywhere(safe_too_high)),
    "a safe time at its own clock": ("safe", everywhere(field(SAFE, lambda row, _file: row.clock))),
    "a version of the schema that never existed": ("schema", everywhere(field(SCHEMA_SEEN, 99))),
    "an earlier version of the schema": ("schema", everywhere(field(SCHEMA_SEEN, 0))),
    "a commit that its leader gave up": ("rollbacks", everywhere(given_up("A"))),
    "a commit that another leader gave up": ("rollbacks", everywhere(given_up("B"))),
    "an integer as a real number": ("tables", everywhere(integers_as_reals)),
    "an index that lacks a row": ("tables", in_b(index_that_lacks_a_row)),
    "rows edited in a cluster that began with tables": ("tables", everywhere(edited_from_the_beginning)),
    "a trigger under a name of the node's": (
        "tables",
        in_b(makes("TRIGGER bedrockish_x AFTER UPDATE ON note BEGIN SELECT 1; END")),
    ),
    "a table under a name of the node's": ("tables", in_b(makes("TABLE bedrockish_x(a)"))),
}
UNSEEN: dict[str, Deed] = {
    "the end cut everywhere, with its rows": everywhere(rows_undone),
    "a changed answer everywhere": everywhere(answer),
    "a later clock at the end": everywhere(post_dated),
    "read sets emptied": everywhere(forgets(0, 1)),
    "the beginning removed everywhere": everywhere(pruned),
    "a weaker isolation": everywhere(field(ISOLATION, "snapshot")),
    "a user that no membership names": everywhere(lambda file: unknown_user(file)),
    "a row's whole history rewritten": everywhere(retold),
    "a changed id of a command": everywhere(other_id),
    "the ids of two commands that share a transaction exchanged": everywhere(ids_exchanged),
    "one commit fewer in a base": everywhere(less_seen),
    "a joined command gone everywhere": everywhere(never_joined_nor_listed),
    "a command assigned to another user": everywhere(anothers),
    "changes assigned to another command": everywhere(shared_otherwise(0, 2)),
    "a user made admin": everywhere(made_admin),
    "a surplus approval removed": everywhere(approved_by_another),
    "an unknown field": everywhere(one_more_field),
    "the same content in other bytes": everywhere(in_other_bytes),
    "the time at which a node applied an entry": everywhere(column("applied_ms = 0")),
    "the order of two concurrent entries": in_b(order_as_may_be),
    "ids of removed commands forgotten": everywhere(forgotten),
}
# No hash covers these facts: a beginning may be removed if the remaining entries continue it; and each node records for
# itself when it applied an entry, and after which other one.
UNANCHORED = {
    "the beginning removed everywhere",
    "the time at which a node applied an entry",
    "the order of two concurrent entries",
    "ids of removed commands forgotten",
}


def make(folder: Path) -> Path:
    """Write sound journals of three nodes: shared commands, adoptions, users; the last two are concurrent."""
    folder.mkdir()
    world = World(folder, 11).run(90)
    members = {name: [f"localhost:{port}", True, f"store of {name}"] for port, name in enumerate(world.nodes)}
    users: dict[str, list[Any]] = {}
    for version, more in ((1, {}), (2, {"ann": ["", 2, 2]}), (3, {"bob": ["", 2, 3]})):
        users |= more
        said = [version, members, "id", 6, {}, dict(sorted(users.items()))]
        world.commit("A", world.transaction("A", MEMBERS, cbor2.dumps(said)))
        world.settle()
        world.config = version
    both = world.nodes["C"].execute([f"INSERT INTO note(rowid, text) VALUES ({row}, 'ours')" for row in (801, 802)])
    shared = replace(
        world.transaction("C", ROWS, both), joined=(("bobs", b"done"),), shares=(1, 1), users=("ann", "bob"), body=b""
    )
    world.commit("C", shared)
    world.settle()
    for leader, row in (("A", 901), ("B", 902)):
        changes = world.nodes[leader].execute([f"INSERT INTO note(rowid, text) VALUES ({row}, 'last')"])
        world.commit(leader, world.transaction(leader, ROWS, changes))
    world.settle()
    world.close()
    return folder


@contextmanager
def tampered(sound: Path, folder: Path, deed: Deed) -> Iterator[list[Path]]:
    """Copy sound journals, apply a manipulation to them, and yield the files."""
    paths = [Path(shutil.copy(path, folder)) for path in sorted(sound.glob("*.db"))]
    files = {path.stem: Forger(path) for path in paths}
    deed(files)
    for file in files.values():
        file.db.commit()
        file.db.close()
    yield paths
