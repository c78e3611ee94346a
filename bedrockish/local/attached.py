"""Files that a program has attached to read, on its connections to a node's file."""

import os
from urllib.parse import quote as in_uri

import apsw

from bedrockish.errors import SqlError, UnsupportedError
from bedrockish.sqltext.attach import Order
from bedrockish_journal.storage.table_layout import quote
from bedrockish_journal.storage.vector_modules import roll_back

OWN = ("main", "temp")
MEMORY = ("", ":memory:")


class Attached:
    """The attached files of one session."""

    def __init__(self) -> None:
        self._paths: dict[str, str] = {}
        self.version = 0  # a number that changes with each ATTACH or DETACH

    def note(self, order: Order) -> None:
        """Record an ATTACH or DETACH, for ``apply_to``.

        Raises:
            SqlError: the name is taken or unknown, or the file does not exist.
            UnsupportedError: the database is not a file.
        """
        name, path = order
        if path is None:
            if name not in self._paths:
                raise SqlError(f"no such database: {name}")
            del self._paths[name]
        elif name in self._paths or name in OWN:
            raise SqlError(f"database {name} is already in use")
        elif path in MEMORY:
            raise UnsupportedError(f"{path or 'a database without a name'} cannot be attached; use CREATE TEMP TABLE")
        elif not os.path.isfile(path):
            raise SqlError(f"unable to open database: {path}: there is no such file; name one that exists")
        else:
            self._paths[name] = os.path.realpath(path)
        self.version += 1

    @property
    def has_any(self) -> bool:
        """Return whether the session has attached a file."""
        return bool(self._paths)

    def forget(self, name: str) -> None:
        """Undo the ATTACH of a file that cannot be read."""
        self._paths.pop(name, None)
        self.version += 1

    def apply_to(self, db: apsw.Connection) -> None:
        """Attach these files to a connection, and detach all others from it.

        Raises:
            apsw.Error: a file cannot be read.
        """
        have = {str(row[1]).lower() for row in db.execute("PRAGMA database_list")} - set(OWN)
        for name in have - self._paths.keys():
            db.execute(f"DETACH {quote(name)}")
        for name in self._paths.keys() - have:
            uri = f"file:{in_uri(self._paths[name])}?mode=ro&vfs=unix".replace("'", "''")
            attach = f"ATTACH '{uri}' AS {quote(name)}"
            try:
                db.execute(attach)
            except apsw.ReadOnlyError as error:
                if not roll_back(self._paths[name], error):
                    raise
                db.execute(attach)
            db.execute(f"SELECT 1 FROM {quote(name)}.sqlite_schema LIMIT 1").fetchall()
