"""The blocking twin of ``Transaction``; a connection also uses it for the statements BEGIN, COMMIT and ROLLBACK."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NoReturn

from bedrockish.api.requests import Params, Result, Rows
from bedrockish.client.in_thread import blocking, run
from bedrockish.client.transaction import Transaction
from bedrockish.errors import BedrockishError

if TYPE_CHECKING:
    from bedrockish.local.transaction import LocalTransaction


class BlockingTransaction:
    """An open transaction. Get one from ``Connection.transaction``; use it from one thread at a time.

    Attributes:
        command: the id of its COMMIT, by which ``Connection.settle`` tells whether the transaction was committed.
    """

    def __init__(self, opened: Transaction) -> None:
        self._opened = opened
        self.command = opened.command

    @property
    def is_open(self) -> bool:
        """Whether the transaction can still be committed, as far as this process knows."""
        return self._opened.is_open

    def execute(self, sql: str, params: Params = None, *, timeout: float | None = None) -> Rows:
        """Run one statement; see ``Transaction.execute``."""
        found = self._opened.run_plain(sql, params, timeout, again=True)
        return found if found is not None else run(self._opened.execute, sql, params, timeout=timeout)

    def run_first(self, sql: str, values: tuple[Any, ...] | dict[str, Any], *, only_brief: bool) -> Result | None:
        """Begin in this process, with a text that has run here before; see ``Transaction.run_first``."""
        return self._opened.run_first(sql, values, only_brief=only_brief)

    @property
    def here(self) -> "LocalTransaction | None":
        """The open transaction if it runs in this process; see ``Transaction.here``."""
        return self._opened.here

    def fail(self, one: "LocalTransaction", error: BaseException) -> NoReturn:
        """Raise the error of a statement that ``one`` has run; see ``Transaction.fail``."""
        self._opened.fail(one, error)

    def lose(self, error: BedrockishError) -> None:
        """Raise this error at each further call; see ``Transaction.lose``."""
        self._opened.lose(error)

    executemany = blocking("_opened", Transaction.executemany)

    def run(self, statements: Sequence[str | tuple[str, Params]], *, timeout: float | None = None) -> list[Rows]:
        """Run several statements in one round trip; see ``Transaction.run``."""
        first = statements[0] if isinstance(statements, Sequence) and len(statements) == 1 else None
        if type(first) is tuple and len(first) == 2:
            one = self._opened.run_plain(*first, timeout)
            if one is not None:
                return [one]
        return run(self._opened.run, statements, timeout=timeout)

    columns = blocking("_opened", Transaction.columns)

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Roll back the changes of the block if the block raises."""
        name = self._opened.next_mark()
        self.execute(f"SAVEPOINT {name}")
        try:
            yield
        except BaseException:
            if self.is_open:
                with suppress(BedrockishError):
                    self.run([f"ROLLBACK TO {name}", f"RELEASE {name}"])
            raise
        self.execute(f"RELEASE {name}")

    commit = blocking("_opened", Transaction.commit)
    rollback = blocking("_opened", Transaction.rollback)
    finish = blocking("_opened", Transaction.finish)

    def abandon(self) -> None:
        """Roll back after a failure."""
        with suppress(BedrockishError):  # the connection was closed, and the transaction with it
            run(self._opened.abandon)


@contextmanager
def commit_at_end(opened: BlockingTransaction) -> Iterator[BlockingTransaction]:
    """Commit a transaction at the end of the block; roll it back if the block raises."""
    try:
        yield opened
        opened.finish()
    except BaseException:
        opened.abandon()
        raise
