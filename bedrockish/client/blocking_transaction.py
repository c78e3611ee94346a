"""The blocking twin of ``Transaction``, which BEGIN, COMMIT and ROLLBACK on a connection use as well."""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from bedrockish.api.requests import Params, Result, Rows
from bedrockish.client.transaction import Transaction
from bedrockish.errors import BedrockishError


class Runs(Protocol):
    """Runs a coroutine function in the client's thread and waits for it."""

    def __call__(self, method: Callable[..., Awaitable[Any]], *args: Any, **kwargs: Any) -> Any:
        """Return the result of the coroutine, or raise its error."""


class BlockingTransaction:
    """An open transaction. Get one from ``Connection.transaction``; use it from one thread at a time.

    Attributes:
        command: the id of its COMMIT, by which ``Connection.settle`` tells whether it happened.
    """

    def __init__(self, call: Runs, opened: Transaction) -> None:
        self._call, self._opened = call, opened
        self.command = opened.command

    @property
    def is_open(self) -> bool:
        """Whether the transaction can still be committed, as far as this process knows."""
        return self._opened.is_open

    def execute(self, sql: str, params: Params = None, *, timeout: float | None = None) -> Rows:
        """Run one statement; see ``Transaction.execute``."""
        found = self._opened.run_plain(sql, params, timeout)
        return found if found is not None else self._call(self._opened.execute, sql, params, timeout=timeout)

    def run_again(self, sql: str, values: tuple[Any, ...]) -> Result | None:
        """Run a text that has run before; see ``Transaction.run_again``."""
        return self._opened.run_again(sql, values)

    def executemany(self, sql: str, rows: Iterable[Params], *, timeout: float | None = None) -> int:
        """Run one statement with many parameters; see ``Transaction.executemany``."""
        changed: int = self._call(self._opened.executemany, sql, rows, timeout=timeout)
        return changed

    def run(self, statements: Sequence[str | tuple[str, Params]], *, timeout: float | None = None) -> list[Rows]:
        """Run several statements in one round trip; see ``Transaction.run``."""
        if len(statements) == 1 and type(statements[0]) is tuple:
            one = self._opened.run_plain(*statements[0], timeout)
            if one is not None:
                return [one]
        found: list[Rows] = self._call(self._opened.run, statements, timeout=timeout)
        return found

    def columns(self, sql: str, *, timeout: float | None = None) -> list[tuple[str, str | None]]:
        """Return name and declared type of each column of a statement's result; see ``Transaction.columns``."""
        found: list[tuple[str, str | None]] = self._call(self._opened.columns, sql, timeout=timeout)
        return found

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Roll back the changes of the block if the block raises."""
        name = self._opened.next_mark()
        self.execute(f"SAVEPOINT {name}")
        try:
            yield
        except BaseException:
            if self.is_open:
                self.run([f"ROLLBACK TO {name}", f"RELEASE {name}"])
            raise
        self.execute(f"RELEASE {name}")

    def commit(self, *, timeout: float | None = None) -> Rows:
        """Commit; see ``Transaction.commit``."""
        found: Rows = self._call(self._opened.commit, timeout=timeout)
        return found

    def rollback(self) -> None:
        """Roll the transaction back; do nothing if it has ended already."""
        self._call(self._opened.rollback)

    def finish(self) -> None:
        """Commit the transaction if it is open; raise its error if it failed and was not rolled back."""
        self._call(self._opened.finish)

    def abandon(self) -> None:
        """Roll back after a failure."""
        try:
            self._call(self._opened.abandon)
        except BedrockishError:  # the connection was closed, and the transaction with it
            return


@contextmanager
def held(opened: BlockingTransaction) -> Iterator[BlockingTransaction]:
    """Commit a transaction at the end of the block; roll it back if the block raises."""
    try:
        yield opened
        opened.finish()
    except BaseException:
        opened.abandon()
        raise
