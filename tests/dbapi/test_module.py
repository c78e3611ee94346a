"""PEP 249, "Module interface", "Exceptions" and "Type objects and constructors": the names of the module."""

import datetime
import threading
import time
import warnings
from contextlib import closing
from typing import Any

import pytest

import bedrockish.dbapi as db
from bedrockish import errors
from bedrockish.dbapi import connection
from tests.dbapi.conftest import BY_URL

pytestmark = pytest.mark.cluster


def test_module_globals_name_level_thread_safety_and_paramstyle() -> None:
    """Three variables of the module give the standard, the thread safety and the style of parameters."""
    assert db.apilevel == "2.0"
    assert db.threadsafety == 2
    assert db.paramstyle == "qmark"
    assert (db.version, db.version_info) == ("2.6.0", (2, 6, 0))  # as in sqlite3 up to Python 3.13


def test_connect_returns_a_connection(url: str) -> None:
    """``connect`` takes its arguments by position or keyword, and returns a connection."""
    with db.connect(url) as first, db.connect(url=url, timeout=5, read="strict") as second:
        assert isinstance(first, db.Connection)
        assert second.execute("SELECT 1").fetchone() == (1,)
    first.close()
    second.close()


def test_connect_errors_name_the_mistake() -> None:
    with pytest.raises(db.InterfaceError, match="not a bedrockish URL"):
        db.connect("sqlite://x")
    with pytest.raises(db.OperationalError) as caught:
        db.connect("bedrockish://127.0.0.1:1/?connect_timeout=0.05")
    assert (caught.value.code, caught.value.retry) == ("unavailable", True)
    assert isinstance(caught.value.__cause__, errors.UnavailableError)
    for wrong in ({"read": "never"}, {"detect_types": 7}, {"timeout": -1}):
        with pytest.raises(db.Error):
            db.connect("bedrockish://127.0.0.1:1/", **wrong)


def test_unsupported_arguments_of_connect_raise_the_errors_of_sqlite3(url: str) -> None:
    for wrong in ({"isolation": "chaos"}, {"autocommit": 7}):
        with pytest.raises(db.ProgrammingError):
            db.connect(url, **wrong)
    with pytest.raises(ValueError, match="isolation_level string"):
        db.connect(url, isolation_level="NONE")
    with pytest.raises(TypeError, match="isolation_level must be"):
        db.connect(url, isolation_level=1)  # type: ignore[arg-type]


def declared_story(module: Any, connection: Any) -> list[Any]:
    """Use declared types as a program does."""
    module.register_converter("money", lambda data: ("money", data))
    connection.execute('CREATE TABLE decl(d DATE, t timestamp, m "money(10) x", i INTEGER PRIMARY KEY, plain)')
    moment = "2024-02-29 01:02:03"
    connection.execute("INSERT INTO decl VALUES ('2024-02-29', ?, 5, 7, '2024-01-01')", (moment,))
    found = connection.execute("SELECT * FROM decl").fetchall()
    sql = 'SELECT d, date(d), m AS "m [date]", d AS x FROM (SELECT d, NULL AS m FROM decl)'
    found += connection.execute(sql).fetchall()
    found += connection.execute("UPDATE decl SET m = NULL RETURNING m, d, i").fetchall()
    found += connection.execute("WITH w AS (SELECT t FROM decl) SELECT t FROM w").fetchall()
    connection.commit()
    connection.execute("ALTER TABLE decl RENAME COLUMN plain TO p")
    connection.execute("ALTER TABLE decl ADD COLUMN also DATE")
    found += connection.execute("SELECT p, also FROM decl").fetchall()
    connection.execute("DROP TABLE decl")
    connection.execute("CREATE TABLE decl(d money)")
    connection.execute("INSERT INTO decl VALUES ('1')")
    found += connection.execute("SELECT * FROM decl").fetchall()
    connection.commit()
    connection.execute("DROP TABLE decl")
    return list(found)


def test_declared_types_are_converted_as_in_sqlite3(url: str) -> None:
    """The first word of the declared type selects the converter, here as in sqlite3, and NULL stays None."""
    import sqlite3

    both = db.PARSE_DECLTYPES | db.PARSE_COLNAMES
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # sqlite3's own converter of timestamps
        theirs = sqlite3.connect(":memory:", detect_types=both)
        expected = declared_story(sqlite3, theirs)
        theirs.close()
    ours = db.connect(url, detect_types=both)
    assert declared_story(db, ours) == expected
    ours.close()


def test_type_codes_are_the_declared_types_on_request(url: str, table: str) -> None:
    connection = db.connect(url, detect_types=db.PARSE_DECLTYPES)
    description = connection.execute(f"SELECT id, name, amount, data, 1 FROM {table}").description
    assert description is not None
    assert [column[1] for column in description] == ["INTEGER", "TEXT", "REAL", "BLOB", None]  # the result has no rows
    assert description[0][1] == db.ROWID
    assert description[3][1] == db.BINARY
    with pytest.raises(db.OperationalError, match="no such table"):
        connection.execute("SELECT * FROM nowhere")
    connection.close()


def test_wrong_detect_types_are_refused(url: str) -> None:
    wrong: Any
    for wrong in (4, -1, "1"):
        with pytest.raises(db.ProgrammingError, match="detect_types should be"):
            db.connect(url, detect_types=wrong)


def test_exceptions_form_the_tree_of_the_standard() -> None:
    """Warning and Error are apart; errors of the database are DatabaseErrors, others InterfaceErrors."""
    assert issubclass(db.Warning, Exception)
    assert issubclass(db.Error, Exception)
    assert not issubclass(db.Warning, db.Error)
    assert db.InterfaceError.__mro__[1] is db.Error
    assert db.DatabaseError.__mro__[1] is db.Error
    below = [db.DataError, db.OperationalError, db.IntegrityError, db.InternalError, db.ProgrammingError]
    for cls in [*below, db.NotSupportedError]:
        assert cls.__mro__[1] is db.DatabaseError


def test_connection_has_the_exception_classes_as_attributes(connection: db.Connection) -> None:
    """Optional extension: the classes are attributes of connections, for code that has only those."""
    names = "Warning Error InterfaceError DatabaseError DataError OperationalError IntegrityError InternalError"
    for name in [*names.split(), "ProgrammingError", "NotSupportedError"]:
        assert getattr(connection, name) is getattr(db, name)


@pytest.mark.parametrize(
    ("sql", "cls", "code"),
    [
        ("SELEC 1", "OperationalError", "sql"),
        ("SELECT * FROM nowhere", "OperationalError", "sql"),
        ("SELECT ?", "ProgrammingError", "sql"),
        ("INSERT INTO {table}(id) VALUES (1), (1)", "IntegrityError", "constraint"),
        ("PRAGMA trusted_schema = OFF", "NotSupportedError", "unsupported"),
    ],
)
def test_errors_have_the_classes_of_the_dbapi_standard(
    connection: db.Connection, table: str, sql: str, cls: str, code: str
) -> None:
    with pytest.raises(getattr(db, cls)) as caught:
        connection.execute(sql.format(table=table))
    assert type(caught.value) is getattr(db, cls)
    assert (caught.value.code, caught.value.retry) == (code, False)
    assert isinstance(caught.value.__cause__, errors.BedrockishError)
    assert str(caught.value) == caught.value.__cause__.message


@BY_URL
def test_attaching_a_file_of_the_program_is_refused(connection: db.Connection) -> None:
    with pytest.raises(db.NotSupportedError) as caught:
        connection.execute("ATTACH 'x' AS y")
    assert caught.value.code == "unsupported"


def test_type_constructors_return_bindable_values(connection: db.Connection) -> None:
    """Date, Time, Timestamp, their twins from ticks, and Binary; dates are stored as sqlite3 stores them."""
    ticks = time.mktime((2024, 2, 29, 12, 30, 15, 0, 0, -1))
    assert db.DateFromTicks(ticks) == db.Date(2024, 2, 29) == datetime.date(2024, 2, 29)
    assert db.TimeFromTicks(ticks) == db.Time(12, 30, 15)
    assert db.TimestampFromTicks(ticks) == db.Timestamp(2024, 2, 29, 12, 30, 15)
    row = connection.execute(
        "SELECT ?, ?, ?, ?", (db.Date(2024, 2, 29), db.Timestamp(2024, 2, 29, 1), db.Binary(b"\0x"), None)
    ).fetchone()
    assert row == ("2024-02-29", "2024-02-29 01:00:00", b"\0x", None)
    with pytest.raises(db.ProgrammingError, match="register_adapter"):
        connection.execute("SELECT ?", (db.Time(1, 2, 3),))


def test_dbapi_type_objects_equal_the_type_codes_of_columns(connection: db.Connection) -> None:
    description = connection.execute("SELECT 'a', 1, 1.5, x'00', NULL").description
    assert description is not None
    text, whole, real, blob, null = (column[1] for column in description)
    assert text == db.STRING
    assert whole == db.NUMBER
    assert whole == db.ROWID
    assert real == db.NUMBER
    assert blob == db.BINARY
    assert null is None
    assert text not in (db.NUMBER, db.BINARY, db.DATETIME, db.ROWID)
    assert db.DATETIME == "timestamp"
    assert db.DATETIME not in (db.STRING, db.NUMBER)
    assert len({db.STRING, db.BINARY, db.NUMBER, db.DATETIME, db.ROWID}) == 5


def test_null_is_returned_as_none(connection: db.Connection) -> None:
    assert connection.execute("SELECT NULL, ?", (None,)).fetchone() == (None, None)


def test_adapters_and_converters_work_as_in_sqlite3(url: str) -> None:
    class Point:
        def __init__(self, x: int, y: int) -> None:
            self.x, self.y = x, y

    class Polite:
        def __conform__(self, protocol: object) -> str | None:
            return "conformed" if protocol is db.PrepareProtocol else None

    db.register_adapter(Point, lambda point: f"{point.x};{point.y}")
    db.register_converter("point", lambda data: Point(*map(int, data.split(b";"))))
    connection = db.connect(url, detect_types=db.PARSE_COLNAMES)
    cursor = connection.execute('SELECT ? AS "p [point]", ? AS polite', (Point(3, 4), Polite()))
    point, polite = cursor.fetchone()
    assert (point.x, point.y, polite) == (3, 4, "conformed")
    assert cursor.description is not None
    assert [column[0] for column in cursor.description] == ["p", "polite"]
    moment = datetime.datetime(2024, 2, 29, 1, 2, 3, 4)
    assert connection.execute('SELECT ? AS "at [timestamp]"', (moment,)).fetchone() == (moment,)
    assert connection.execute('SELECT ? AS "on [date]"', (moment.date(),)).fetchone() == (moment.date(),)
    connection.close()


def test_threads_share_a_connection(connection: db.Connection, table: str, other: db.Connection) -> None:
    """Thread safety 2: threads may share connections. Their statements form one transaction, committed once."""

    def work(first: int) -> None:
        for number in range(first, first + 20):
            connection.execute(f"INSERT INTO {table}(id, name) VALUES (?, ?)", (number, f"n{number}"))

    threads = [threading.Thread(target=work, args=(100 * n,)) for n in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert other.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)
    connection.commit()
    assert other.execute(f"SELECT count(*) FROM {table}").fetchone() == (80,)


def test_declared_types_of_long_texts_take_a_bounded_number_of_bytes(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "DECLARED_CHARACTERS", 50_000)
    with closing(db.connect(url, detect_types=db.PARSE_DECLTYPES)) as connected:
        for number in range(20):
            assert connected.execute(f"SELECT {number}, length('{'x' * 10_000}')").fetchone() == (number, 10_000)
            assert sum(map(len, connected._declared_types)) <= 60_100
        assert connected._declared_types
