"""Random documents, boxes, rollbacks and schema changes at two nodes: each index equals one built from its rows."""

import tempfile
from pathlib import Path
from random import Random

import apsw
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from bedrockish.errors import BedrockishError
from bedrockish_journal.verify.replay import digest, replay
from tests.engine.test_virtual_tables import DOCS, INDEX, TRIGGERS
from tests.engine.virtual_pair import Pair, check_virtual

WORDS = ("alpha", "beta", "gamma", "delta", "alpha beta", "", "Alpha-Beta", "ünï alpha")
VALUES = (*(f"'{word}'" for word in WORDS), "NULL", "7", "x'616c'")
SCHEMA_CHANGES = (
    ("DROP TABLE IF EXISTS found", INDEX),
    ("DROP TABLE found", INDEX.replace("found", "found").replace("id')", "id', tokenize='porter')")),
    ("ALTER TABLE docs ADD COLUMN extra",),
    ("ALTER TABLE docs DROP COLUMN extra",),
    ("CREATE INDEX by_title ON docs(title)",),
    ("DROP INDEX by_title",),
    TRIGGERS,
    ("DROP TRIGGER docs_ai", "DROP TRIGGER docs_ad", "DROP TRIGGER docs_au"),
    ("DROP TRIGGER docs_ad",),  # the remaining triggers then contradict each other
    (
        "CREATE TABLE other(id INTEGER PRIMARY KEY, title, body, n)",
        "INSERT INTO other SELECT id + 100, title, body, n FROM docs",
        "DROP TABLE docs",
        "ALTER TABLE other RENAME TO docs",
    ),
    ("INSERT INTO docs(id, title) VALUES (77, 'alpha')", "CREATE TABLE more(x)", "DROP TABLE more"),
    ("ALTER TABLE notes RENAME TO other_notes", "ALTER TABLE other_notes RENAME TO notes"),
    ("INSERT INTO found(found, rank) VALUES ('secure-delete', 1)",),
    ("INSERT INTO notes(notes, rank) VALUES ('automerge', 2)",),
)


def texts(one: int, many: int, title: str, body: str) -> list[str]:
    """Return statements on documents, notes and boxes, of which some fail.

    Args:
        one: an id.
        many: how many rows the longer ones make.
        title: a value, as SQL has it.
        body: the same.
    """
    numbers = f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {many})"
    return [
        f"INSERT OR REPLACE INTO docs(id, title, body) VALUES ({one}, {title}, {body})",
        f"INSERT INTO docs(title, body) VALUES ({title}, {body})",
        f"{numbers} INSERT INTO docs(title, body) SELECT {title}, {body} || i FROM n",
        f"UPDATE docs SET title = {title} WHERE id % 3 = {one % 3}",
        f"UPDATE docs SET n = {one}",
        f"UPDATE OR REPLACE docs SET id = id + {one} WHERE id < {one}",
        f"DELETE FROM docs WHERE id = {one} OR title = {title}",
        f"DELETE FROM docs WHERE id > {10 * one}",
        f"INSERT OR REPLACE INTO notes(rowid, title, body) VALUES ({one}, {title}, {body})",
        f"{numbers} INSERT INTO notes(title, body) SELECT {title} || i, {body} FROM n",
        f"UPDATE notes SET body = {body} WHERE rowid < {one}",
        f"UPDATE notes SET rowid = rowid + 50 WHERE rowid = {one}",
        "DELETE FROM notes WHERE notes MATCH 'alpha'",
        f"INSERT OR REPLACE INTO boxes VALUES ({one}, {one / 7}, {one / 3}, {title})",
        f"{numbers} INSERT INTO boxes SELECT NULL, i / 7.0, i + 0.1, {title} FROM n",
        f"UPDATE boxes SET x1 = x1 + 0.3, name = {body} WHERE x0 < {one}",
        f"DELETE FROM boxes WHERE id = {one} OR x0 > {one}",
        f"INSERT OR ROLLBACK INTO docs(id, title) VALUES ({one}, 'alpha'), ({one}, 'beta')",
        "INSERT INTO found(found) VALUES ('rebuild')",
        f"INSERT INTO found(found, rowid, title, body) VALUES ('delete', {one}, {title}, {body})",
    ]


@st.composite
def request(draw: st.DrawFn) -> tuple[str, ...]:
    """Draw the statements of one request."""
    word = st.sampled_from(VALUES)
    ids, one = st.integers(1, 12), draw(st.integers(1, 12))
    statements = [draw(st.sampled_from(texts(one, draw(st.integers(1, 40)), draw(word), draw(word))))]
    statements += [f"DELETE FROM docs WHERE id = {draw(ids)}"] * draw(st.integers(0, 1))
    return tuple(statements)


STEPS = st.lists(
    st.tuples(st.integers(0, 1), request() | request() | request() | st.sampled_from(SCHEMA_CHANGES), st.booleans()),
    min_size=3,
    max_size=12,
)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(triggers=st.booleans(), steps=STEPS)
def test_maintained_indexes_answer_like_rebuilt_ones(
    triggers: bool, steps: list[tuple[int, tuple[str, ...], bool]]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        pair = Pair(Path(folder))
        try:
            pair.run(
                0, DOCS, INDEX, *(TRIGGERS if triggers else ()), "CREATE VIRTUAL TABLE notes USING fts5(title, body)"
            )
            pair.run(0, "CREATE VIRTUAL TABLE boxes USING rtree(id, x0, x1, +name)")
            for at, statements, saves in steps:
                try:
                    pair.run(at, *statements)
                except BedrockishError as error:
                    event(type(error).__name__)
                pair.check()
                if saves:
                    pair.nodes[at].save()
            for node in pair.nodes:
                node.save()
            target = Path(folder) / "made.db"
            made = replay([node.path for node in pair.nodes], target, draw=Random(len(steps)).random).digest
            assert made == digest(pair.nodes[0].path) == digest(pair.nodes[1].path)
            with_indexes = apsw.Connection(str(target))
            check_virtual(with_indexes)
            with_indexes.close()
        finally:
            pair.close()
