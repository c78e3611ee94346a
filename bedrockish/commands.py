"""Commands: functions of an application that run inside the nodes, as transactions, and are called by name.

    from bedrockish.commands import CommandError, Transaction, command

    @command
    def transfer(tx: Transaction, source: int, target: int, amount: int) -> int:
        changed = tx.execute("UPDATE account SET balance = balance - ? WHERE id = ? AND balance >= ?",
                             (amount, source, amount))
        if not changed.rowcount:
            raise CommandError("there is not enough on the account", reason="balance", account=source)
        tx.execute("UPDATE account SET balance = balance + ? WHERE id = ?", (amount, target))
        return tx.execute("SELECT balance FROM account WHERE id = ?", (source,)).value()

The configuration of every node names the module of such functions. The idea, and the division into *peek* and
*process*, come from Bedrock.
"""

import inspect
import logging
import sys
import types
import typing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, overload

from bedrockish.api.requests import Named, Params, Rows, Statement, check_params
from bedrockish.engine.execution.workspace import Work
from bedrockish.errors import BedrockishError, CommandError
from bedrockish.sqltext.transaction_control import RELEASE, ROLLBACK_TO, SAVEPOINT, Control

__all__ = ["Command", "CommandError", "Rows", "Transaction", "command", "query"]

logger = logging.getLogger(__name__)

Function = Callable[..., Any]
_SIMPLE = (int, float, str, bytes, bool, list, dict)


class Transaction:
    """The transaction in which a command runs: it reads a snapshot and its own writes.

    Attributes:
        command: the unique id of this call, the same in each run of it.
        node: name of the node that runs the command.
        now: Unix time in seconds at the begin of this run, by the node's clock.
    """

    def __init__(self, work: Work, command: str, node: str, now: float) -> None:
        self.command, self.node, self.now = command, node, now
        self._work = work
        self._reading = False
        self._savepoints = 0

    def execute(self, sql: str, params: Params = None) -> Rows:
        """Run a statement and return its rows.

        Raises:
            ConstraintError: the data forbids the statement; earlier changes stay, and the command may continue.
            SqlError: SQLite does not accept the statement.
            UnsupportedError: a command may not use this statement, or the statement writes in a ``peek``.
            TooLargeError: a limit of the node is reached.
        """
        if not isinstance(sql, str) or not sql.strip():
            raise CommandError(f"a statement should be an SQL text, not {sql!r:.80}", reason="failed")
        done = self._work.run(Statement(sql, check_params(params)), read_only=self._reading)
        return Rows(done.columns, done.rows, done.rowcount, done.lastrowid)

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Roll back the changes of the block if the block raises."""
        self._savepoints += 1
        name = f"block {self._savepoints}"
        self._work.control(Control(SAVEPOINT, name))
        try:
            yield
        except Exception:
            self._work.control(Control(ROLLBACK_TO, name))
            raise
        finally:
            self._work.control(Control(RELEASE, name))


@dataclass(slots=True, eq=False)
class Command:
    """One command; made by ``command`` or ``query``."""

    name: str  # the name by which clients call it
    process: Function | None  # the function that writes; None if the command only reads
    peek_function: Function | None = None  # the function that only reads, and may return the answer without ``process``

    def peek(self, function: Function) -> Function:
        """Register a function that runs before ``process``, with the same arguments; if it returns None, process runs.

        Return the function itself, for use as a decorator.
        """
        self.peek_function = function
        return function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function directly, so that one command can use another one as an ordinary function."""
        function = self.process or self.peek_function
        assert function is not None
        return function(*args, **kwargs)

    @property
    def signature(self) -> str:
        """The text of the function's arguments, without the transaction."""
        function = self.process or self.peek_function
        assert function is not None
        whole = _parameters(function)
        mine = whole.replace(parameters=[*whole.parameters.values()][1:], return_annotation=inspect.Signature.empty)
        if sys.version_info >= (3, 14):
            return mine.format(quote_annotation_strings=False)
        return str(mine)

    def check(self, call: Named) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the checked arguments of a call, by position and by name.

        Raises:
            CommandError: the arguments do not match the function's signature.
        """
        args, kwargs = (), dict[str, Any]()
        if isinstance(call.args, dict):
            kwargs = call.args
        else:
            args = tuple(call.args)
        for function in (self.peek_function, self.process):
            if function is None:
                continue
            try:
                bound = _parameters(function).bind(None, *args, **kwargs)
            except TypeError as error:
                raise self._wrong(str(error)) from None
            hints = _hints(function)
            for name, value in bound.arguments.items():
                wanted = hints.get(name)
                if wanted is not None and not _fits(value, wanted):
                    kinds = " or ".join(sorted(kind.__name__ for kind in wanted))
                    raise self._wrong(f"{name} should be {kinds}, not {type(value).__name__}")
        return args, kwargs

    def _wrong(self, why: str) -> CommandError:
        return CommandError(
            f"command {self.name} takes {self.signature}: {why}", reason="arguments", name=self.name, error=why
        )

    def run(self, tx: Transaction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, bool]:
        """Run the command; return its result, and whether ``process`` has run."""
        if self.peek_function is not None:
            tx._reading = True
            found = self.peek_function(tx, *args, **kwargs)
            tx._reading = False
            if found is not None or self.process is None:
                return found, False
        assert self.process is not None
        return self.process(tx, *args, **kwargs), True


@overload
def command(function: Function, /) -> Command: ...
@overload
def command(*, name: str) -> Callable[[Function], Command]: ...
def command(function: Function | None = None, /, *, name: str = "") -> Command | Callable[[Function], Command]:
    """Make a command from a function: its first argument is the ``Transaction``, the others come from the caller.

    A call may run the function more than once, so it must have no effects outside of the transaction. Its return value
    (plain values, lists, maps) is the caller's answer.
    """
    if function is None:
        return lambda function: Command(name, function)
    return Command(name or function.__name__, function)


@overload
def query(function: Function, /) -> Command: ...
@overload
def query(*, name: str) -> Callable[[Function], Command]: ...
def query(function: Function | None = None, /, *, name: str = "") -> Command | Callable[[Function], Command]:
    """Make a command from a function that only reads."""
    if function is None:
        return lambda function: Command(name, None, function)
    return Command(name or function.__name__, None, function)


def _parameters(function: Function) -> inspect.Signature:
    """Return the signature of a function; from Python 3.14 on, with its annotations as texts.

    There, annotations would be evaluated now, and may name objects that are imported only for a type checker.
    """
    if sys.version_info >= (3, 14):
        from annotationlib import Format

        return inspect.signature(function, annotation_format=Format.STRING)
    return inspect.signature(function)


def _hints(function: Function) -> dict[str, frozenset[type]]:
    """Return the allowed plain types of each parameter whose annotation consists of such types."""
    try:
        hints = typing.get_type_hints(function)
    except Exception:  # an annotation cannot be evaluated, so no argument is checked
        return {}
    found = {}
    for name, hint in hints.items():
        is_union = typing.get_origin(hint) in (types.UnionType, typing.Union)  # the same class from 3.14 on
        parts = typing.get_args(hint) if is_union else (hint,)
        kinds = [typing.get_origin(part) or part for part in parts]
        if kinds and all(kind in (*_SIMPLE, type(None)) for kind in kinds):
            found[name] = frozenset(kinds)
    return found


def _fits(value: object, wanted: frozenset[type]) -> bool:
    kind = type(value)
    return kind in wanted or (kind is int and float in wanted)


def failed(name: str, node: str, error: BaseException) -> BedrockishError:
    """Return the error for the caller of a command that has raised an unexpected exception."""
    return CommandError(
        f"command {name} failed at {node} with {type(error).__name__}: {error}; it did not happen, and the log of "
        f"{node} has more",
        reason="failed",
        name=name,
        node=node,
        error=type(error).__name__,
    )
