"""The journal of a running node, read over the network through the ordinary client, in pages that take milliseconds.

Reads are stale reads, which never wait, and pages have a limited size: the reader loads a node like any client. After
each page the reader sleeps for as long as the node has taken, so that it uses at most half of a node's time.
"""

import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import quote, urlencode

from bedrockish.api.requests import STALE
from bedrockish.api.url import hide_password
from bedrockish.client.blocking import Connection, connect
from bedrockish.errors import ConfigError, TooLargeError
from bedrockish_journal.model.errors import JournalError
from bedrockish_journal.spark.source.context import Context
from bedrockish_journal.spark.source.founding import read_beginning
from bedrockish_journal.spark.source.plans import HELD, PRIMARY_KEY, Ask, Span, WantedEntries, check_held
from bedrockish_journal.storage.row import JournalRow

PAGE_BYTES = 1 << 20
PAGE_TICKS = 1_000
SLEEP_MAX_S = 1.0
_NODE = "SELECT value FROM bedrockish_meta WHERE key = 'node'"
_TICKS = "SELECT tick, 0 FROM bedrockish_journal WHERE leader = ?1 AND tick BETWEEN ?2 AND ?3 ORDER BY tick"
_FIRST = "SELECT min(tick) FROM bedrockish_journal WHERE leader = ?1 AND tick BETWEEN ?2 AND ?3"
_BLOBS = "SELECT label, body FROM bedrockish_journal WHERE leader = ? AND tick = ?"
# Reads the length of at most one entry beyond a page, because a node may have to read an entry to know its length.
_SIZES = """WITH RECURSIVE page(tick, size, before) AS (
    SELECT ?2 - 1, 0, 0
    UNION ALL SELECT j.tick, length(j.label) + length(j.body), page.before + page.size
      FROM page JOIN bedrockish_journal AS j ON j.leader = ?1 AND j.tick = (
        SELECT min(tick) FROM bedrockish_journal WHERE leader = ?1 AND tick > page.tick AND tick <= ?3)
      WHERE page.before <= ?4)
  SELECT tick, size FROM page WHERE tick >= ?2 ORDER BY tick"""


class NodeFeed:
    """A running node's journal; get one from ``open_node_feed``.

    Raises:
        BedrockishError: the node cannot be reached, or refuses.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._node = str(connection.execute(_NODE, read=STALE).value())
        path = f"node {self._node}"
        beginning = read_beginning(self._ask, path)
        cluster = str(connection.status()["cluster_id"])  # not from the founding, which only an admin sees
        self.context = Context(self._node, path, self._primary_key, beginning, cluster=cluster)
        self.ask: Ask = self._ask

    def _ask(self, sql: str, params: tuple[object, ...]) -> Iterable[Sequence[Any]]:
        (rows,) = self._ask_all((sql, params))
        return rows

    def _ask_all(self, *questions: tuple[str, tuple[object, ...]]) -> list[Iterable[Sequence[Any]]]:
        """Run several queries on one snapshot, and check that the same node answers as before."""
        asked: Any = [_NODE, *questions]
        begun = time.monotonic()
        node, *found = self._connection.transact(asked, read=STALE)
        if node.value() != self._node:
            raise JournalError(
                f"node {self._node} does not answer any more, node {node.value()} does; give each its own URL"
            )
        time.sleep(min(time.monotonic() - begun, SLEEP_MAX_S))
        return [one.rows for one in found]

    def _one_by_one(self, span: Span, wanted: WantedEntries) -> Iterator[JournalRow]:
        """Yield the entries of a page that is too large for one result, by streams, which have no such bound.

        The bytes of an entry are read by a statement of their own, because the number of columns of a statement bounds
        the length of its values.
        """
        query, values = replace(wanted, blobs=False).query
        with self._connection.stream(query, (*span, *values), read=STALE) as heads:
            found = [JournalRow._make(head) for head in heads]
        for one in found:
            with self._connection.stream(_BLOBS, (one.leader, one.tick), read=STALE) as blobs:
                yield from (one._replace(label=label, body=body) for label, body in blobs)

    def _primary_key(self, table: str) -> list[str]:
        return [str(row[0]) for row in self.ask(PRIMARY_KEY, (table,))]

    def scan(self, spans: Sequence[Span], wanted: WantedEntries) -> Generator[JournalRow]:
        """Yield entries as ``OpenJournal.scan`` does, page by page.

        Raises:
            BedrockishError: the node can no longer be reached.
        """
        query, values = wanted.query
        for leader, low, high in spans:
            while low <= high:
                last, ticks = self._page(leader, low, high, wanted)
                if ticks:
                    try:
                        held, found = self._ask_all((HELD, (leader,)), (query, (leader, low, last, *values)))
                        rows = list(map(JournalRow._make, found))
                    except TooLargeError:
                        rows = list(self._one_by_one((leader, low, last), wanted))
                        (held,) = self._ask_all((HELD, (leader,)))  # after the reading, to detect a removal during it
                    check_held(f"node {self._node}", (leader, low, high), held)
                    yield from rows
                low = last + 1

    def _page(self, leader: str, low: int, high: int, wanted: WantedEntries) -> tuple[int, list[int]]:
        """Return the last tick of a page that begins at tick ``low``, and the ticks of its entries.

        The page has one entry of any size, or many small ones. It is empty if the next ``PAGE_TICKS`` ticks are
        missing.
        """
        window = min(high, low + PAGE_TICKS - 1)
        span = (leader, low, window)
        asked: tuple[str, tuple[object, ...]] = (_SIZES, (*span, PAGE_BYTES)) if wanted.blobs else (_TICKS, span)
        try:
            held, sizes = self._ask_all((HELD, (leader,)), asked)
        except TooLargeError:  # an entry is too long for a statement that copies it several times
            held, ((tick,),) = self._ask_all((HELD, (leader,)), (_FIRST, span))
            window = window if tick is None else tick
            sizes = [] if tick is None else [(tick, 0)]
        check_held(f"node {self._node}", (leader, low, high), held)
        size, ticks = 0, list[int]()
        for tick, length in sizes:
            size += length
            if wanted.blobs and ticks and size > PAGE_BYTES:
                window = ticks[-1]
                break
            ticks.append(tick)
        if wanted.whole and ticks != list(range(low, window + 1)):
            raise JournalError(f"node {self._node} holds {len(ticks)} entries from {leader}{low} to {leader}{window}")
        return window, ticks


@contextmanager
def open_node_feed(url: str, access: Mapping[str, str]) -> Iterator[NodeFeed]:
    """Connect to a running node to read its journal.

    Args:
        access: user, password, ca, cert and key, as far as they are not in the URL.

    Raises:
        BedrockishError: the node cannot be reached, or refuses the connection.
    """
    with connect(url_with(url, access)) as connection:
        yield NodeFeed(connection)


def url_with(url: str, access: Mapping[str, str]) -> str:
    """Return a URL with the credentials, and without discovery of other nodes.

    Raises:
        ConfigError: both the URL and the options name a user.
    """
    scheme, _, rest = url.partition("://")
    if "user" in access:
        if "@" in rest:
            raise ConfigError(f"{hide_password(url)!r} names a user, and so does the option 'user'; leave one out")
        password = f":{quote(access['password'], safe='')}" if "password" in access else ""
        rest = f"{quote(access['user'], safe='')}{password}@{rest}"
    options = {name: access[name] for name in ("ca", "cert", "key") if name in access}
    if "discover=" not in rest:
        options["discover"] = "no"  # another node has another journal
    mark = "&" if "?" in rest else "?" if rest.endswith("/") else "/?"
    return f"{scheme}://{rest}{mark if options else ''}{urlencode(options)}"
