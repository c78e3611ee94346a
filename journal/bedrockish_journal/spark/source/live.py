"""The journal of a running node, read over the network through the ordinary client, in pages of limited size.

Reads are stale reads, which never wait, and a page is read as streams, whose values have any length: the reader loads a
node like any client. A page is read to its end before its entries are used, because a node ends a stream that stays
unread. After each page the reader sleeps for as long as the node has taken, so that it uses at most half of a node's
time.
"""

import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import quote, urlencode

from bedrockish.api.requests import STALE
from bedrockish.api.url import hide_password
from bedrockish.client.blocking import Connection, connect
from bedrockish.errors import ConfigError, ResultLostError
from bedrockish_journal.model.errors import JournalError
from bedrockish_journal.spark.source.context import Context
from bedrockish_journal.spark.source.founding import read_beginning
from bedrockish_journal.spark.source.plans import HELD, PRIMARY_KEY, Span, WantedEntries, check_held
from bedrockish_journal.storage.file_claims import Ask
from bedrockish_journal.storage.row import JournalRow

PAGE_ENTRIES, PAGE_BYTES = 1_000, 4 << 20
SLEEP_MAX_S = 1.0
_NODE = "SELECT value FROM bedrockish_meta WHERE key = 'node'"
_COUNT = "SELECT count(*) FROM bedrockish_journal WHERE leader = ? AND tick BETWEEN ? AND ?"


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
        self._taken_s = 0.0  # the time that the node has taken for the present page

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

    def _rows(self, sql: str, params: tuple[object, ...]) -> Generator[Sequence[Any]]:
        """Yield the rows of a stream, and add the time that the node has taken to ``_taken_s``."""
        began = time.monotonic()
        with self._connection.stream(sql, params, read=STALE) as rows:
            for row in rows:
                self._taken_s += time.monotonic() - began
                yield row
                began = time.monotonic()

    def _primary_key(self, table: str) -> list[str]:
        return [str(row[0]) for row in self.ask(PRIMARY_KEY, (table,))]

    def scan(self, spans: Sequence[Span], wanted: WantedEntries) -> Generator[JournalRow]:
        """Yield entries as ``OpenJournal.scan`` does, page by page.

        Raises:
            BedrockishError: the node can no longer be reached.
        """
        for leader, low, high in spans:
            while low <= high:
                try:
                    page, low = self._page((leader, low, high), wanted)
                except ResultLostError:  # the node was started again, for example
                    page, low = self._page((leader, low, high), wanted)
                yield from page

    def _page(self, span: Span, wanted: WantedEntries) -> tuple[list[JournalRow], int]:
        """Return the first entries of a range, and the tick after them.

        Labels and bodies are read by a statement of their own, because the number of columns of a statement bounds the
        length of its values.
        """
        leader, low, high = span
        self._taken_s = 0.0
        query, values = replace(wanted, blobs=False).query
        params = (*span, *values)
        heads = [JournalRow._make(row) for row in self._rows(f"{query} LIMIT {PAGE_ENTRIES}", params)]
        last, size, page = heads[-1].tick if len(heads) == PAGE_ENTRIES else high, 0, heads
        if wanted.blobs:
            query, _ = wanted.select("tick, label, body")
            page = []
            with closing(self._rows(f"{query} LIMIT {PAGE_ENTRIES}", params)) as blobs:
                for head, (tick, label, body) in zip(heads, blobs, strict=False):
                    if tick != head.tick:
                        break  # entries were removed in between, which ``check_held`` reports below
                    page.append(head._replace(label=label, body=body))
                    size += len(body) if type(body) is bytes else 0
                    if size >= PAGE_BYTES:
                        last = tick
                        break
        time.sleep(min(self._taken_s, SLEEP_MAX_S))
        held, ((count,),) = self._ask_all((HELD, (leader,)), (_COUNT, (leader, low, last)))
        check_held(f"node {self._node}", span, held)
        if wanted.whole and count != last - low + 1:
            raise JournalError(f"node {self._node} holds {count} entries from {leader}{low} to {leader}{last}")
        return page, last + 1


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
