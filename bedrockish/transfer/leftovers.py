"""The search for values in files: nodes' files, backups, exports, or any other files.

Of a SQLite database the rows, the journal and the bytes are searched, because the bytes may have deleted rows. Of other
files the bytes are searched. Compressed and encrypted files that cannot be read are reported, so that they do not count
as clean.
"""

import json
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw

from bedrockish.errors import UsageError
from bedrockish_journal.model.errors import JournalError
from bedrockish_journal.model.moment import time_text
from bedrockish_journal.storage.packing import TABLE as PACKS
from bedrockish_journal.storage.packing import has_packs
from bedrockish_journal.storage.store import heads, open_database, unpack_on
from bedrockish_journal.storage.table_layout import quote

NUMBER_LEAST = 1 << 24  # smaller numbers are not searched for: their bytes occur in every file by chance
TEXT_LEAST = 4  # characters, for the same reason
PIECE = 16 << 20  # bytes of a file that are searched at a time
SQLITE, PARQUET = b"SQLite format 3\0", b"PAR1"
PACKED = {  # the first bytes of files that cannot be searched
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\xfd7zXZ": "xz",
    b"BZh": "bzip2",
    b"PK\x03\x04": "zip",
    b"Obj\x01": "Avro, which may be compressed",
    b"ORC": "ORC, which may be compressed",
}
_JOURNAL = "SELECT leader, tick, clock, command, label, body FROM bedrockish_journal ORDER BY leader, tick"
_COMPACT = "'bedrockish compact'"
_PACK = b"BZh91AY&SY"  # the beginning of a pack's entries, without which they cannot be unpacked
_FORGOTTEN = "ids of commands that were removed from the journal; they are forgotten after a week"

Rows = Callable[[Path], Iterator[Iterable[Any]]]


@dataclass(frozen=True, slots=True)
class Found:
    """One place where a value is, or may be.

    Attributes:
        path: the file.
        where: the place in the file, and the remedy, for people.
        looked: True if the value is there; False if the file could not be searched.
    """

    path: Path
    where: str
    looked: bool = True


class Values:
    """The search terms: texts, without regard to the case of ASCII letters, and whole numbers.

    Raises:
        UsageError: a term is so short that it is in every file by chance.
    """

    def __init__(self, values: Sequence[str]) -> None:
        self._texts, self._numbers = [], set[int]()
        forms: set[bytes] = set()
        for value in values:
            number = int(value) if value.isascii() and value.isdecimal() and len(value) < 19 else None
            if len(value) < TEXT_LEAST or (number is not None and number < NUMBER_LEAST):
                raise UsageError(
                    f"{value!r} is in every file by chance; look for a text of at least {TEXT_LEAST} characters, or a "
                    f"number from {NUMBER_LEAST}"
                )
            self._texts.append(value.encode(errors="surrogateescape").lower())
            forms.update(_text_forms(value))
            if number is not None:
                self._numbers.add(number)
                forms.update(_number_forms(number))
        self._forms = [form.lower() for form in forms]
        self.overlap = max(map(len, self._forms), default=1) - 1

    def in_bytes(self, data: bytes) -> bool:
        """Whether bytes contain a term in any form in which files store it."""
        folded = data.lower()
        return any(form in folded for form in self._forms)

    def in_value(self, value: Any) -> bool:
        """Whether a value of a row equals a term, or contains one."""
        if isinstance(value, int | float):
            return value in self._numbers
        if isinstance(value, str):
            value = value.encode(errors="surrogateescape")
        return isinstance(value, bytes) and self.in_bytes(value)


def _text_forms(text: str) -> Iterator[bytes]:
    yield text.encode(errors="surrogateescape")
    yield text.replace("'", "''").encode(errors="surrogateescape")  # as a literal of SQL
    yield json.dumps(text)[1:-1].encode()


def _number_forms(number: int) -> Iterator[bytes]:
    """Yield the bytes of a number: the last bytes of its form in rows and entries, in a key, and as a rowid."""
    yield number.to_bytes((number.bit_length() + 7) // 8)
    (word,) = struct.unpack(">Q", struct.pack(">d", number))
    yield struct.pack(">Q", word ^ (1 << 63))
    if number.bit_length() <= 56:
        groups = [number >> 7 * place & 0x7F for place in range((number.bit_length() + 6) // 7)]
        yield bytes([*(0x80 | group for group in groups[:0:-1]), groups[0]])


def leftovers(paths: Iterable[Path], values: Values, read_parquet: Rows | None) -> Iterator[Found]:
    """Yield the places of values in files, and in all files of directories.

    Args:
        paths: files and directories.
        values: the search terms.
        read_parquet: returns the rows of a Parquet file; None if Parquet cannot be read here.

    Raises:
        UsageError: a path does not exist.
    """
    seen: set[Path] = set()
    for path in paths:
        if not path.exists():
            raise UsageError(f"{path}: no such file or directory")
        closed: list[OSError] = []
        for file in _files(path, closed.append):
            if file.resolve() not in seen:
                seen.add(file.resolve())
                try:
                    yield from _look(file, values, read_parquet)
                except (OSError, apsw.Error, JournalError, UnicodeDecodeError) as error:
                    yield Found(file, f"cannot be read: {error}", looked=False)
        for why in closed:
            yield Found(Path(why.filename or path), f"cannot be read: {why}", looked=False)


def _files(path: Path, closed: Callable[[OSError], None]) -> Iterator[Path]:
    if path.is_dir():
        for folder, folders, names in os.walk(path, onerror=closed):
            folders.sort()
            yield from (Path(folder, name) for name in sorted(names) if Path(folder, name).is_file())
        return
    yield path
    for end in ("-wal", "-journal"):  # SQLite's companion files belong to their database
        if (beside := path.with_name(path.name + end)).is_file():
            yield beside


def _look(path: Path, values: Values, read_parquet: Rows | None) -> Iterator[Found]:
    if not path.is_file():
        yield Found(path, "is not a regular file", looked=False)  # opening a pipe would wait for its writer
        return
    with open(path, "rb") as file:
        begins = file.read(16)
    if begins == SQLITE:
        found = list(_database(path, values))
        yield from found
        packs = _packs(path)
        if _count(path, _PACK) > packs:
            what = "compressed bytes, of packs of the journal that were removed or of values of tables"
            yield Found(path, f"has {what}, that cannot be looked into: {_COMPACT}", looked=False)
        if not found and _in_file(path, values):
            yield Found(path, f"in what is free of the file, as it was before it was deleted: {_COMPACT}")
        return
    if begins.startswith(PARQUET):
        if read_parquet is None:
            yield Found(path, "is Parquet; pip install 'bedrockish[audit]' to look into it", looked=False)
        elif count := sum(any(map(values.in_value, row)) for row in read_parquet(path)):
            yield Found(path, f"{count} values of columns")
        elif _in_file(path, values):
            yield Found(path, "in its bytes")
        return
    if _in_file(path, values):
        is_log = path.name.endswith("-wal")
        yield Found(path, f"in the write-ahead log, as it was written: {_COMPACT}" if is_log else "in its bytes")
    if path.name.endswith("-wal") and _count(path, _PACK):
        yield Found(path, f"has packs of the journal, that cannot be looked into here: {_COMPACT}", looked=False)
    for head, name in PACKED.items():
        if begins.startswith(head):
            yield Found(path, f"is {name}", looked=False)


def _count(path: Path, what: bytes) -> int:
    """Return how often a file contains some bytes."""
    kept, found = b"", 0
    with open(path, "rb") as file:
        while piece := file.read(PIECE):
            data = kept + piece
            found += data.count(what)
            kept = data[len(data) - len(what) + 1 :]
    return found


def _packs(path: Path) -> int:
    """Return how many packs the journal in a file has."""
    with closing(open_database(path)) as db:
        return int(db.execute(f"SELECT count(*) FROM {PACKS}").get) if has_packs(db) else 0


def _in_file(path: Path, values: Values) -> bool:
    """Whether the bytes of a file contain a value anywhere."""
    kept = b""
    with open(path, "rb") as file:
        while piece := file.read(PIECE):
            data = kept + piece
            if values.in_bytes(data):
                return True
            kept = data[len(data) - values.overlap :] if values.overlap else b""
    return False


def _database(path: Path, values: Values) -> Iterator[Found]:
    with closing(open_database(path)) as db:
        query = "SELECT name FROM pragma_table_list WHERE schema = 'main' AND type IN ('table', 'shadow')"
        names = [str(name) for (name,) in db.execute(query)]
        if "bedrockish_journal" in names:
            unpack_on(db)  # after the list of names, which must not contain this view
        for name in sorted(names):
            if name == "bedrockish_journal":
                yield from _journal(path, db, values)
            elif count := sum(any(map(values.in_value, row)) for row in db.execute(f"SELECT * FROM {quote(name)}")):
                rows = f"{count} row{'s' * (count > 1)} of {name}"
                yield Found(path, f"{rows}: {_FORGOTTEN}" if name == "bedrockish_past" else rows)


def _journal(path: Path, db: apsw.Connection, values: Values) -> Iterator[Found]:
    ends = heads(db)
    places: list[tuple[int, str, int]] = []
    for leader, tick, clock, *parts in db.execute(_JOURNAL):
        if parts[1:] == [b"", b""]:
            yield Found(path, f"{leader}{tick} of the journal cannot be unpacked: fill the node again", looked=False)
        if any(map(values.in_value, parts)):
            places.append((clock, leader, tick))
            if ends[leader][0] == tick:
                yield Found(
                    path,
                    f"{leader}{tick} of the journal, the last that {leader} has led: it can go when {leader} has led "
                    "another one",
                )
    if places:
        (_, leader, tick), (last, *until) = min(places), max(places)
        count = f"{len(places)} entr{'ies' if len(places) > 1 else 'y'} of the journal, {leader}{tick}"
        upto = f" to {until[0]}{until[1]}" if len(places) > 1 else ""
        yield Found(path, f"{count}{upto}, the last of {time_text(last)}: until the journal is shorter than that")
