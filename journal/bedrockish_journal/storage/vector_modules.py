"""SQLite's modules for vectors, and connections that load them: ``vec1`` of apsw and ``vec0`` of sqlite-vec.

A virtual table can be opened only on a connection that has loaded its module. So every connection to a file with user
tables is a ``ModuleConnection``.
"""

import ctypes
import importlib.util
import json
import os
import threading
from contextlib import closing, suppress
from functools import cache
from pathlib import Path
from typing import Any

import apsw

from bedrockish_journal.model.plain_names import quote

BUSY_MS = 5_000  # the most milliseconds that a connection waits for the locks of other programs
VEC0, VEC1 = "vec0", "vec1"
VECTORS = (VEC0, VEC1)
PACKAGES = {VEC0: "sqlite-vec", VEC1: "apsw"}
"""The package that brings each module."""
_TABLES = (
    "SELECT t.name, c.name FROM {}.sqlite_schema AS t, pragma_table_xinfo(t.name, ?) AS c WHERE c.cid = 0 "
    "AND t.type = 'table' AND t.rootpage = 0 AND instr(lower(t.sql), 'vec0')"
)
_ENTRY = {VEC0: "sqlite3_vec_init", VEC1: None}
TRAINING_VECTORS, TRAINING_BYTES, TRAINING_CODES = 10_000, 8 << 20, 300_000
"""The bounds on the input of a vec1 model: vectors, their bytes, and vectors times the size of their codes.

The time of ``vec1_train`` grows with their products, and nothing can interrupt it: 100,000 vectors of four dimensions
in 8,000 buckets took five seconds, 10,000 vectors with codes of 209 bytes eleven. These take less than two.
"""
OPTIONS_CHARACTERS = 1_000
TRAINING_OPTIONS = ("distance", "index", "nbucket", "quantizer", "codesize", "residual")


class ModuleConnection(apsw.Connection):
    """A connection that has loaded the installed modules for vectors."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._shield = threading.RLock()  # held while interrupts must wait
        self._seen: dict[str, int] = {}  # attached schema -> its version when ``prepare_vec0`` last saw it
        self.is_shielded = False  # whether ``prepare_vec0`` runs; then no progress handler may end the statement
        found = _libraries()
        if found:
            self.config(apsw.SQLITE_DBCONFIG_ENABLE_LOAD_EXTENSION, 1)
            for name, path in found.items():
                self.load_extension(path, _ENTRY[name])
            self.config(apsw.SQLITE_DBCONFIG_ENABLE_LOAD_EXTENSION, 0)
            if VEC1 in found:
                for count in (1, 2):
                    self.create_aggregate_function("vec1_train", _Training, count)

    def interrupt(self) -> None:
        """End the running statements of the connection; see ``prepare_vec0``."""
        with self._shield:
            super().interrupt()

    def prepare_vec0(self) -> None:
        """Let each table of vec0 compile its own statement now, if the schema has changed.

        vec0 compiles the statement that finds a row when a search first needs it. If an interrupt, or an exception in
        the authorizer, ends this compilation, sqlite-vec 0.1.9 uses a null pointer, and the process ends. A commit of
        rows of vec0 makes it compile the statement again, on this connection alone: a node's writer, which runs no
        searches of clients.
        """
        if VEC0 not in _libraries():
            return
        for schema in self.db_names():
            if schema == "temp":
                continue  # no virtual table is temporary
            name = quote(schema)
            version = self.execute(f"PRAGMA {name}.schema_version").get
            if version == self._seen.get(schema, 0):
                continue
            with self._shield:
                authorizer = self.authorizer
                try:
                    self.authorizer, self.is_shielded = None, True
                    named: list[Any] = self.execute(_TABLES.format(name), (schema,)).fetchall()
                    for table, key in named:
                        found = f"SELECT * FROM {name}.{quote(table)}"
                        for which in (f"WHERE {quote(key)} = -1", "LIMIT 1"):  # the first fails if texts are keys
                            with suppress(apsw.Error):
                                self.execute(f"{found} {which}").fetchall()
                finally:
                    self.is_shielded, self.authorizer = False, authorizer
            self._seen[schema] = version

    def forget_vec0(self) -> None:
        """Let ``prepare_vec0`` run again: after a rollback of a schema change, vec0 has lost its statement."""
        self._seen.clear()


SqliteError = apsw.Error
"""The errors of a ``ModuleConnection``."""


def roll_back(path: str | os.PathLike[str], error: apsw.Error) -> bool:
    """Roll back the transaction that a killed process has left unfinished in a file in SQLite's rollback mode.

    Return False if the error has another reason, or the file cannot be written.

    SQLite itself rolls it back when a program opens the file to write, and refuses programs that only read until then.
    """
    if getattr(error, "extendedresult", 0) != apsw.SQLITE_READONLY_ROLLBACK:
        return False
    try:
        with closing(apsw.Connection(os.fspath(path), flags=apsw.SQLITE_OPEN_READWRITE)) as db:
            db.set_busy_timeout(BUSY_MS)
            db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            db.execute("SELECT count(*) FROM sqlite_schema").fetchall()
    except apsw.Error:
        return False
    return True


def open_to_read(path: Path) -> ModuleConnection:
    """Open a database file read-only; first, a transaction that a killed program has left unfinished is rolled back.

    Raises:
        SqliteError: the file cannot be opened.
    """
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    db = ModuleConnection(f"{path.absolute().as_uri()}?mode=ro", flags=flags)
    db.set_busy_timeout(BUSY_MS)
    try:
        db.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchall()
    except apsw.ReadOnlyError as error:
        roll_back(path, error)
    except apsw.Error:
        pass  # the first read reports it
    return db


def open_to_check(path: Path) -> ModuleConnection:
    """Open a database file to check its rows: a connection that may only read ignores CHECK, so this one may write.

    The connection changes nothing, not even when it is closed.

    Raises:
        SqliteError: the file cannot be opened.
    """
    db = ModuleConnection(
        f"{path.absolute().as_uri()}?mode=rw", flags=apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_URI
    )
    db.set_busy_timeout(BUSY_MS)
    db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    db.pragma("query_only", True)
    return db


class _Training:
    """The aggregate ``vec1_train``: collects the vectors, and calls vec1's own function if it will take little time.

    Raises:
        apsw.SQLError: in ``step`` and ``final``: the training would take too long.
    """

    def __init__(self) -> None:
        self._vectors: list[Any] = []
        self._options: tuple[Any, ...] = ()
        self._bytes = 0

    def step(self, *given: Any) -> None:
        """Add a vector. Its options are used only if it is the first vector."""
        vector, *options = given
        self._bytes += len(vector) if isinstance(vector, str | bytes) else 0
        if len(self._vectors) == TRAINING_VECTORS or self._bytes > TRAINING_BYTES:
            raise apsw.SQLError(
                f"vec1_train() takes {TRAINING_VECTORS} vectors of {TRAINING_BYTES} bytes together at most; train on "
                "a sample: SELECT vec1_train(e) FROM (SELECT e FROM v ORDER BY random() LIMIT 5000)"
            )
        if not self._vectors:
            self._options = tuple(options)
        self._vectors.append(vector)

    def final(self) -> Any:
        """Return the model that vec1 makes of the collected vectors."""
        with closing(apsw.Connection(":memory:")) as db:
            db.enable_load_extension(True)
            db.load_extension(_libraries()[VEC1])
            db.execute("CREATE TABLE v(e)")
            db.executemany("INSERT INTO v VALUES (?)", ((one,) for one in self._vectors))
            if not self._options:
                return db.execute("SELECT vec1_train(e) FROM v").get
            return db.execute("SELECT vec1_train(e, ?) FROM v", (self._checked(db),)).get

    def _checked(self, db: apsw.Connection) -> str:
        """Return the options as JSON; raise an error for options that start threads or take long."""
        if len(str(self._options[0])) > OPTIONS_CHARACTERS:
            raise apsw.SQLError(f"vec1_train() takes options of {OPTIONS_CHARACTERS} characters at most")
        text: Any = db.execute("SELECT json(?)", self._options).get or "{}"
        found: Any = json.loads(text, object_pairs_hook=lambda pairs: {name.lower(): value for name, value in pairs})
        if not isinstance(found, dict):
            raise apsw.SQLError("vec1_train() takes its options as a JSON object")
        for name in found.keys() - set(TRAINING_OPTIONS):
            raise apsw.SQLError(f"vec1_train() takes no option {name!r:.60} here, only {', '.join(TRAINING_OPTIONS)}")
        if str(found.get("quantizer")).lower() == "opq":
            raise apsw.SQLError("vec1_train() takes no quantizer 'opq' here, which may take hours; use 'pq' or 'bq'")
        try:
            codes = int(found.get("codesize") or 0)
        except (OverflowError, TypeError, ValueError):
            codes = 0  # vec1 itself refuses such a code size
        if codes * len(self._vectors) > TRAINING_CODES:
            raise apsw.SQLError(
                f"vec1_train() takes {TRAINING_CODES // codes} vectors at most for codes of {codes} bytes; train on a "
                "sample, or use a smaller codesize"
            )
        return json.dumps(found)


@cache
def installed() -> dict[str, str]:
    """Return the modules for vectors that are installed here, each with its version."""
    functions = {VEC0: "vec_version()", VEC1: "vec1_info()"}
    with closing(ModuleConnection(":memory:")) as db:
        return {name: str(db.execute(f"SELECT {functions[name]}").get).split(" (")[0] for name in _libraries()}


@cache
def _libraries() -> dict[str, str]:
    """Return the library of each module that is installed and can be loaded."""
    found = {}
    for name, path in ((VEC0, _of_sqlite_vec()), (VEC1, _of_apsw())):
        try:
            if path is not None:
                ctypes.CDLL(str(path))  # keeps the library loaded; otherwise SQLite would load it for each connection
                found[name] = str(path)
        except OSError:
            continue
    return found


def _of_sqlite_vec() -> Path | None:
    spec = importlib.util.find_spec("sqlite_vec")
    if spec is None or spec.origin is None:
        return None
    return next(Path(spec.origin).parent.glob("vec0.*"), None)


def _of_apsw() -> Path | None:
    folder = Path(str(apsw.__file__)).parent
    listed = folder / "sqlite_extra.json"
    if not listed.exists() or VEC1 not in json.loads(listed.read_text()):
        return None
    return next((folder / "sqlite_extra_binaries").glob(f"{VEC1}.*"), None)
