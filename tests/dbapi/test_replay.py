"""Replays: a connection with ``replay=True`` runs a lost transaction again, and goes on if it is answered as before."""

from contextlib import closing
from threading import Timer

import pytest

import bedrockish.dbapi as db
from bedrockish.client.blocking_transaction import BlockingTransaction
from bedrockish.dbapi.session import FIRST_TRIES, SessionTransaction
from bedrockish.errors import ConflictError

pytestmark = pytest.mark.cluster


def test_replay_continues_a_lost_transaction_if_its_results_are_the_same(url: str) -> None:
    setup = db.connect(url)
    setup.executescript(
        "CREATE TABLE replayed(id INTEGER PRIMARY KEY, n INT); INSERT INTO replayed VALUES (1, 0), (2, 0)"
    )
    count, read = "UPDATE replayed SET n = n + 1 WHERE id = 1", "SELECT n FROM replayed WHERE id = ?"
    connection = db.connect(url, replay=True, autocommit=False)
    with setup, connection:
        assert connection.execute(read, (2,)).fetchone() == (0,)
        connection.execute(count)
        setup.execute(count)
        setup.commit()
        connection.commit()
        assert setup.execute(read, (1,)).fetchone() == (2,)
        # The replay also works at a statement, and from a savepoint on.
        assert connection.execute(read, (2,)).fetchone() == (0,)
        connection.execute("SAVEPOINT a")
        connection.execute(count)
        setup.execute(count)
        setup.commit()
        connection.execute(count)
        connection.execute("RELEASE a")
        connection.commit()
        assert setup.execute(read, (1,)).fetchone() == (5,)
        # The program has read a value that has changed since.
        assert connection.execute(read, (1,)).fetchone() == (5,)
        setup.execute(count)
        setup.commit()

        def write() -> None:
            connection.execute("UPDATE replayed SET n = 5 + 1 WHERE id = 1")
            connection.commit()

        with pytest.raises(db.OperationalError) as caught:
            write()
        assert caught.value.retry
        connection.rollback()
        assert setup.execute(read, (1,)).fetchone() == (6,)
    setup.close()
    connection.close()


def test_a_transaction_that_is_run_again_repeats_its_settings(url: str, table: str) -> None:
    """The PRAGMA is repeated at its place, so that it holds for the statements after it only."""
    with closing(db.connect(url, isolation_level=None, replay=True)) as one, closing(db.connect(url)) as other:
        one.execute(f"INSERT INTO {table}(id, name, amount) VALUES (1, 'a', 1), (2, 'B', 1)")
        one.execute("BEGIN")
        assert one.execute(f"SELECT count(*) FROM {table} WHERE name LIKE 'b'").fetchone() == (1,)
        one.execute("PRAGMA case_sensitive_like = ON")
        one.execute(f"UPDATE {table} SET amount = amount + 1 WHERE name LIKE 'A' OR name LIKE 'B'")
        other.execute(f"UPDATE {table} SET amount = 10")
        other.commit()
        one.execute("COMMIT")
        assert one.execute(f"SELECT amount FROM {table} ORDER BY id").fetchall() == [(10,), (11,)]
        assert one.execute(f"SELECT count(*) FROM {table} WHERE name LIKE 'b'").fetchone() == (0,)


def test_replay_repeats_statements_that_have_failed(url: str, table: str) -> None:
    """Rows before the failure have stayed, and the program may have acted on the error."""
    insert = f"INSERT INTO {table}(id, name) VALUES (?, ?)"
    with closing(db.connect(url, isolation_level=None, replay=True)) as one, closing(db.connect(url)) as other:
        other.execute(f"INSERT INTO {table}(id, name, amount) VALUES (1, 'a', 1), (2, 'b', 1)")
        other.commit()
        for overtakes, is_lost in (("SET amount = amount + 1 WHERE id = 1", False), ("SET id = 9 WHERE id = 2", True)):
            one.execute("BEGIN")
            one.execute(f"UPDATE {table} SET amount = amount + 1 WHERE id = 1")
            with pytest.raises(db.IntegrityError):
                one.executemany(insert, [(3, "c"), (2, "d"), (4, "e")])
            with pytest.raises(db.IntegrityError):
                one.execute("INSERT OR FAIL" + insert.removeprefix("INSERT") + ", (2, 'f')", (5, "g"))
            other.execute(f"UPDATE {table} {overtakes}")
            other.commit()
            if is_lost:
                with pytest.raises(db.OperationalError, match="run it again"):
                    one.execute("COMMIT")
                one.execute("ROLLBACK")
            else:
                one.execute("COMMIT")
                assert one.execute(f"SELECT id, amount FROM {table} ORDER BY id").fetchall()[0] == (1, 3)
                assert [row[0] for row in one.execute(f"SELECT id FROM {table} ORDER BY id")] == [1, 2, 3, 5]
                one.execute(f"DELETE FROM {table} WHERE id > 2")


def test_statement_that_conflicts_after_each_replay_raises_the_conflict(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each replay succeeds, and the statement then meets another commit: it raises no AssertionError."""
    with closing(db.connect(url, isolation_level=None, replay=True)) as one:
        session = one._session

        def lose(opened: SessionTransaction, _statements: object) -> None:
            opened.link.rollback()
            raise ConflictError("another one has changed the row")

        one.execute("BEGIN")
        one.execute("SELECT 1")
        monkeypatch.setattr(session, "_run_opened", lose)
        monkeypatch.setattr(session, "timeout_s", 0.2)
        with pytest.raises(db.OperationalError, match="another one") as caught:
            one.execute("SELECT 2")
        assert caught.value.retry
        assert one.in_transaction
        one.execute("ROLLBACK")


def test_replay_keeps_the_rows_of_a_transaction_that_was_repaired_after_its_commit_failed(url: str) -> None:
    with closing(db.connect(url, isolation_level=None, replay=True)) as one, closing(db.connect(url)) as other:
        key = "REFERENCES mended(id) DEFERRABLE INITIALLY DEFERRED"
        other.executescript(
            f"CREATE TABLE mended(id INTEGER PRIMARY KEY, up {key}); CREATE TABLE counted(n); "
            "INSERT INTO counted VALUES (0)"
        )
        one.execute("BEGIN")
        one.execute("UPDATE counted SET n = n + 1")
        one.execute("INSERT INTO mended VALUES (2, 1)")
        with pytest.raises(db.IntegrityError, match="deferred"):
            one.execute("COMMIT")
        one.execute("INSERT INTO mended VALUES (1, NULL)")
        other.execute("UPDATE counted SET n = n + 1")
        other.commit()
        one.execute("COMMIT")
        assert other.execute("SELECT * FROM mended ORDER BY id").fetchall() == [(1, None), (2, 1)]
        assert other.execute("SELECT n FROM counted").fetchone() == (2,)


def lost(opened: BlockingTransaction, *_: object, **__: object) -> object:
    """Lose the transaction, in place of its ``commit`` or ``run``."""
    error = ConflictError("another one has changed the row")
    opened.rollback()
    opened.lose(error)
    raise error


@pytest.mark.parametrize("first", [True, False])
def test_transaction_whose_statement_was_given_up_is_not_committed_without_it(
    url: str, table: str, monkeypatch: pytest.MonkeyPatch, first: bool
) -> None:
    with closing(db.connect(url, isolation_level=None, replay=True)) as one:
        one.execute("BEGIN")
        if not first:
            one.execute(f"INSERT INTO {table}(id) VALUES (1)")
        with monkeypatch.context() as patch:
            patch.setattr(BlockingTransaction, "run", lost)
            patch.setattr(one._session, "timeout_s", 0.1)
            with pytest.raises(db.OperationalError, match="another one"):
                one.execute(f"INSERT INTO {table}(id) VALUES (2)")
        assert one.in_transaction
        for text in (f"INSERT INTO {table}(id) VALUES (3)", "COMMIT"):
            with pytest.raises(db.OperationalError, match="another one"):
                one.execute(text)
        assert one.execute(f"SELECT id FROM {table}").fetchall() == []


@pytest.mark.parametrize("first", [True, False])
def test_interrupted_statement_is_not_replayed(url: str, table: str, first: bool) -> None:
    numbers = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < 40000000) SELECT max(x) FROM n"
    with closing(db.connect(url, isolation_level=None, replay=True)) as one:
        one.execute("BEGIN")
        if not first:
            one.execute(f"INSERT INTO {table}(id) VALUES (1)")
        timer = Timer(0.3, one.interrupt)
        timer.start()
        with pytest.raises(db.OperationalError, match="interrupted"):
            one.execute(numbers).fetchall()
        timer.join()


def test_first_statement_is_tried_until_its_time_is_over(url: str, table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(db.connect(url, replay=True)) as one:
        true, losses = BlockingTransaction.run, iter(range(FIRST_TRIES + 2))

        def lose(opened: BlockingTransaction, *given: object, **named: object) -> object:
            again = next(losses, None) is None
            return true(opened, *given, **named) if again else lost(opened)  # type: ignore[arg-type]

        monkeypatch.setattr(BlockingTransaction, "run", lose)
        one.execute(f"INSERT INTO {table}(id) VALUES (1)")
        one.commit()
        assert one.execute(f"SELECT id FROM {table}").fetchall() == [(1,)]


@pytest.mark.parametrize("method", ["commit", "run"])
def test_replay_goes_on_until_the_transaction_is_committed(
    url: str, table: str, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """The statement that is lost seven times is a COMMIT, or the first one after BEGIN, of which nothing was seen."""
    with closing(db.connect(url, isolation_level=None, replay=True)) as one:
        one.execute("BEGIN")
        if method == "commit":
            one.execute(f"INSERT INTO {table}(id) VALUES (1)")
        true, losses = getattr(BlockingTransaction, method), iter(range(FIRST_TRIES + 2))

        def lose(opened: BlockingTransaction, *given: object, **named: object) -> object:
            if next(losses, None) is None:
                return true(opened, *given, **named)
            opened.rollback()
            raise ConflictError("another one has changed the row")

        monkeypatch.setattr(BlockingTransaction, method, lose)
        if method == "run":
            one.execute(f"INSERT INTO {table}(id) VALUES (1)")
        one.execute("COMMIT")
        assert next(losses, None) is None
        assert one.execute(f"SELECT id FROM {table}").fetchall() == [(1,)]


def test_rollback_after_the_commit_of_a_replay_was_lost_is_answered(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ROLLBACK after a lost COMMIT is answered, even if the lost COMMIT was that of a replay."""
    with closing(db.connect(url, isolation_level=None, replay=True)) as one:

        def lose(opened: BlockingTransaction, **_: object) -> None:
            opened.rollback()
            raise ConflictError("another one has changed the row")

        one.execute("BEGIN")
        one.execute("SELECT 1")
        monkeypatch.setattr(BlockingTransaction, "commit", lose)
        monkeypatch.setattr(one._session, "timeout_s", 0.1)
        with pytest.raises(db.OperationalError, match="another one"):
            one.execute("COMMIT")
        one.execute("ROLLBACK")
        with pytest.raises(db.OperationalError, match="no transaction"):
            one.execute("ROLLBACK")


def test_transaction_whose_replay_reads_another_value_stays_lost_by_its_conflict(url: str, table: str) -> None:
    """Later calls must not raise ProgrammingError: programs do not try again after it, and Celery's workers end."""
    with closing(db.connect(url, autocommit=False, replay=True)) as one, closing(db.connect(url)) as other:
        other.execute(f"INSERT INTO {table}(id, name, amount) VALUES (1, 'a', 1)")
        other.commit()
        one.execute(f"SELECT amount FROM {table} WHERE id = 1").fetchall()
        other.execute(f"UPDATE {table} SET amount = 2 WHERE id = 1")
        other.commit()
        change = f"UPDATE {table} SET name = 'b' WHERE id = 1"
        calls = [lambda: one.execute(change), lambda: one.execute(f"SELECT name FROM {table}"), one.commit]
        if not url.startswith("bedrockish:"):
            one.execute(change)
            del calls[:2]  # on a node's file, conflicts are found at COMMIT
        for call in calls:
            with pytest.raises(db.OperationalError, match="run it again") as caught:
                call()
            assert caught.value.retry
        assert one.execute(f"SELECT amount FROM {table}").fetchall() == [(2,)]
