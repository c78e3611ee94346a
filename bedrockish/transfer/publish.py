"""Publishing: the change feed as messages in the shape that Debezium gave them, to a webhook or to Kafka.

A place in a file says what was taken. It is written after that, so who is killed in between sends some again: each
message comes at least once, in order, under an id by which its receiver knows it again.
"""

import fcntl
import hashlib
import hmac
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from bedrockish import __version__
from bedrockish.errors import UnavailableError, UsageError
from bedrockish_journal.feed.change_feed import Committed, CursorError, parse_cursor
from bedrockish_journal.feed.json_form import plain, record
from bedrockish_journal.model.changes import DELETE, INSERT, UPDATE, Change

OPS = {INSERT: "c", UPDATE: "u", DELETE: "d"}
MESSAGES = 500  # that go together at most
TIMEOUT_S = 30.0  # for an answer of a webhook
ANSWER_BYTES = 300  # of an answer that are repeated in an error
AGAIN = (408, 425, 429)  # what a webhook says that wants it later; and all from 500 on
KeyColumns = Callable[[str], Sequence[str]]


@dataclass(frozen=True, slots=True)
class Message:
    """One message.

    Attributes:
        id: the same whenever it is sent: the place of its transaction in the feed, and its own in that.
        table: of the change; None for a change of the schema.
        key: what stays the same for a row, as JSON; None for a change of the schema.
        value: the message.
    """

    id: str
    table: str | None
    key: str | None
    value: Mapping[str, Any]


class Sink(Protocol):
    """Where messages go."""

    def deliver(self, messages: Sequence[Message]) -> None:
        """Deliver messages, and return when they are taken.

        Raises:
            UnavailableError: not now.
            UsageError: never like this.
        """


def messages_of(commit: Committed, name: str, key_columns: KeyColumns) -> Iterator[Message]:
    """Yield the messages for a transaction: one for each changed row, or one for a change of the schema.

    Args:
        commit: the transaction.
        name: of the cluster, for its readers.
        key_columns: tells the columns of the primary key of a table WITHOUT ROWID.
    """
    source = {
        "version": __version__,
        "connector": "bedrockish",
        "name": name,
        "ts_ms": int(commit.at.timestamp() * 1000),
        "snapshot": "false",
        "db": "main",
        "clock": commit.clock,
        "leader": commit.place[0],
        "tick": commit.place[1],
    }
    whose, place = commit.whose, f"{commit.clock}.{commit.cursor.leader}"
    if commit.statements:
        said = {"command": commit.command, "user": whose.get(commit.command)}
        value = {"source": source | {"table": None} | said, "ts_ms": source["ts_ms"], "ddl": list(commit.statements)}
        yield Message(f"{place}:0", None, None, value)
        return
    of_table: dict[str, int] = {}
    makers = commit.makers or (commit.command,) * len(commit.changes)
    for number, (change, maker) in enumerate(zip(commit.changes, makers, strict=True), 1):
        of_table[change.table] = of_table.get(change.table, 0) + 1
        order = {"id": place, "total_order": number, "data_collection_order": of_table[change.table]}
        value = {
            "before": record(change, change.before),
            "after": record(change, change.after),
            "source": source | {"table": change.table, "command": maker, "user": whose.get(maker)},
            "op": OPS[change.op],
            "ts_ms": source["ts_ms"],
            "transaction": order,
        }
        yield Message(f"{place}:{number}", change.table, _key(change, key_columns), value)


def _key(change: Change, key_columns: KeyColumns) -> str:
    """Return what names the row before the change, so that all that happens to it has one key, and stays in order."""
    if change.rowid is not None:
        return json.dumps({"rowid": change.rowid})
    row = dict(zip(change.columns, change.before or change.after or (), strict=True))
    columns = [column for column in key_columns(change.table) if column in row] or list(row)
    return json.dumps({column: plain(row[column]) for column in columns})


class Place:
    """Where a publisher has got to: a cursor in a file, for one process at a time.

    Args:
        path: of the file, which is made.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    @contextmanager
    def held(self) -> Iterator[str | None]:
        """Keep others from it; the cursor, None at the beginning.

        Raises:
            UsageError: another program has it, it cannot be written, or is not a place file.
        """
        try:
            lock = os.open(f"{self._path}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise UsageError(f"the place {self._path} cannot be written: {error.strerror}") from error
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UsageError(f"another program publishes from {self._path}; give each a place of its own") from None
            yield self._read()
        finally:
            os.close(lock)

    def _read(self) -> str | None:
        try:
            text = self._path.read_text().removesuffix("\n")
            if len(text.splitlines()) > 1:
                raise CursorError("a cursor is one line")
            parse_cursor(text)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise UsageError(f"the place {self._path} cannot be read: {error.strerror}") from error
        except (ValueError, CursorError):
            raise UsageError(f"{self._path} is no place that this program has written; give another file") from None
        return text or None

    def write(self, cursor: str) -> None:
        """Keep a cursor, durably.

        Raises:
            UsageError: it cannot be written.
        """
        unfinished = self._path.with_name(f"{self._path.name}.unfinished")
        try:
            with unfinished.open("w") as file:
                file.write(f"{cursor}\n")
                file.flush()
                os.fsync(file.fileno())
            os.replace(unfinished, self._path)
        except OSError as error:
            raise UsageError(f"the place {self._path} cannot be written: {error.strerror}") from error


class Webhook:
    """Sends messages as the body of a POST, signed if there is a secret.

    Args:
        url: to which.
        secret: with which a receiver checks that it was us; empty for none.
    """

    def __init__(self, url: str, secret: bytes) -> None:
        self._url, self._secret = url, secret
        self._opener = urllib.request.build_opener(_StayHere())

    def deliver(self, messages: Sequence[Message]) -> None:
        """Send messages; any answer of 200 to 299 means that they are taken.

        Raises:
            UnavailableError: no answer came, or it says later.
            UsageError: the answer says never.
        """
        packed = [{"id": one.id, **one.value} for one in messages]
        body = json.dumps({"messages": packed}, ensure_ascii=False).encode()
        headers = {"Content-Type": "application/json", "Idempotency-Key": f'"{messages[-1].id}"'}
        if self._secret:
            at = str(int(time.time()))
            digest = hmac.new(self._secret, at.encode() + b"." + body, hashlib.sha256).hexdigest()
            headers["Bedrockish-Signature"] = f"t={at},v1={digest}"
        asked = urllib.request.Request(self._url, body, headers, method="POST")
        try:
            with self._opener.open(asked, timeout=TIMEOUT_S):
                return
        except urllib.error.HTTPError as error:
            with error:
                said = error.read(ANSWER_BYTES).decode("utf-8", "replace").strip()
            text = f"the webhook answers {error.code} {error.reason}" + (f": {said}" if said else "")
            if error.code in AGAIN or error.code >= 500:
                raise UnavailableError(text) from None
            raise UsageError(f"{text}; nothing further is sent. Mend it and start again: nothing is lost") from None
        except (OSError, ValueError) as error:  # refused, timed out, no TLS; or no HTTP
            raise UnavailableError(f"the webhook cannot be reached: {getattr(error, 'reason', error)}") from None


class _StayHere(urllib.request.HTTPRedirectHandler):
    """Treats a redirect as an answer: data must not go to an address that the operator did not name."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Follow none."""
