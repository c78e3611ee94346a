"""Programs in separate processes that have the file of a node open, and may be killed or stopped at any moment.

The workload's clients and their records stay in this process; a program executes each call with the blocking client. A
session survives its program by its token, like the session of a web server.
"""

import pickle
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import trio

import bedrockish
from bedrockish.api.requests import Rows
from bedrockish.client.blocking import Connection
from bedrockish.client.blocking_transaction import BlockingTransaction
from bedrockish.errors import BedrockishError, OutcomeUnknownError, UnavailableError, pack_error, unpack_error
from tools.cluster import ROOT, clean_environment

DARK_S = 0.05  # pause between two checks whether the power is back, in seconds


class Conversation:
    def __init__(self, program: "Program", command: str) -> None:
        self._program, self.command = program, command

    async def execute(self, sql: str, params: list[Any]) -> Rows:
        """Run a statement."""
        found: Rows = await self._program.ask("execute", sql, params)
        return found

    async def commit(self) -> Rows:
        """Commit.

        Raises:
            OutcomeUnknownError: the program was killed, or the answer was lost.
        """
        found: Rows = await self._program.ask("commit", doubt=True)
        return found

    async def rollback(self) -> None:
        """Roll the transaction back, unless it has ended."""
        if self._program.is_running:
            await self._program.ask("rollback")


class ProgramProcess:
    """A process that has the file of a node open, until it is killed."""

    def __init__(self, database: Path | None = None) -> None:
        self.database = database  # the file that the process has open, or None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def is_running(self) -> bool:
        """The state of the process: True while it runs."""
        return self._process is not None and self._process.poll() is None

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process, if it runs; after SIGKILL, wait until it has ended."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)
            if number is signal.SIGKILL:
                self._process.wait()


class Program(ProgramProcess):
    """One client whose calls are made in another process; a killed process is replaced by a new one."""

    def __init__(self, dark: set[Path]) -> None:
        super().__init__()
        self._dark = dark
        self._url, self._is_open = "", False
        self.token: bytes | None = None  # the session's token

    @asynccontextmanager
    async def at(self, url: str, database: Path) -> AsyncIterator["Program"]:
        """Open a node's file in the program's process, for the time of a ``with`` block.

        Raises:
            BedrockishError: the file cannot be used, and no node of the URL can be reached.
        """
        self._url, self.database = f"{url}&local={database}", database
        try:
            await self._open()
            yield self
        finally:
            if self.is_running and self._is_open:
                with trio.CancelScope(shield=True):
                    await self.ask("close")
            self.database = None

    async def _open(self) -> None:
        self._is_open = False
        while self.database in self._dark:  # noqa: ASYNC110  nothing runs on a machine without power
            await trio.sleep(DARK_S)
        if not self.is_running:
            self.end()
            self._process = subprocess.Popen(  # noqa: ASYNC220  it returns at once
                [sys.executable, "-m", "tools.chaos.programs"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                cwd=ROOT,
                env=clean_environment(),
            )
        await self._hand("open", (self._url, self.token), {})
        self._is_open = True

    async def ask(self, name: str, *args: Any, doubt: bool = False, **named: Any) -> Any:
        """Have the program make a call, and return its answer.

        Args:
            doubt: whether the call may have happened if the program is killed.

        Raises:
            BedrockishError: the call has failed in the program.
        """
        if not (self.is_running and self._is_open):
            if name in ("execute", "commit"):
                raise UnavailableError("the program was killed before it has committed")
            await self._open()
        return await self._hand(name, args, named, doubt=doubt)

    async def _hand(self, name: str, args: tuple[Any, ...], named: dict[str, Any], *, doubt: bool = False) -> Any:
        assert self._process is not None
        found = await trio.to_thread.run_sync(_exchange, self._process, (name, args, named))
        if found is None:
            if doubt:
                raise OutcomeUnknownError("the program was killed; it may have happened")
            raise UnavailableError("the program was killed; it did not happen")
        value, error, token = found
        self.token = token or self.token
        if error is not None:
            raise unpack_error(error)
        return value

    async def transact(self, statements: list[Any], *, read: str, timeout: float, command: str) -> list[Rows]:  # noqa: ASYNC109
        found: list[Rows] = await self.ask(
            "transact", statements, read=read, timeout=timeout, command=command, doubt=True
        )
        return found

    async def begin(self, *, read: str, timeout: float) -> Conversation:  # noqa: ASYNC109
        return Conversation(self, await self.ask("begin", read=read, timeout=timeout))

    async def settle(self, command: str, *, timeout: float) -> bool:  # noqa: ASYNC109
        """Return whether a command has happened; if not, it never will."""
        return bool(await self.ask("settle", command, timeout=timeout, doubt=True))

    def end(self) -> None:
        self.send(signal.SIGKILL)
        if self._process is not None:
            for stream in (self._process.stdin, self._process.stdout):
                assert stream is not None
                with suppress(OSError):  # the process was killed before it read the call
                    stream.close()


def _exchange(process: "subprocess.Popen[bytes]", call: tuple[str, tuple[Any, ...], dict[str, Any]]) -> Any:
    """Write a call and read its answer; None if the program is killed before it answers."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        pickle.dump(call, process.stdin)
        process.stdin.flush()
        return pickle.load(process.stdout)
    except (OSError, EOFError, pickle.UnpicklingError):
        return None


class _Calls:
    def __init__(self) -> None:
        self.db: Connection | None = None
        self._transaction: BlockingTransaction | None = None
        self._count = 0

    def open(self, url: str, token: bytes | None) -> None:
        self.close()
        self.db = bedrockish.connect(url)
        if token is not None:
            self.db.token = token

    def close(self) -> None:
        db, self.db = self.db, None
        if db is not None:
            db.close()

    def transact(self, statements: list[Any], read: str, timeout: float, command: str) -> list[Rows]:
        assert self.db is not None
        self._count += 1
        if read == "session" and self._count % 2 and all(sql.startswith("SELECT") for sql, _ in statements):
            snapshot: AbstractContextManager[None] = nullcontext()
            try:
                snapshot = self.db.snapshot(read=read, timeout=timeout)
                with snapshot:
                    return [self.db.execute(sql, params, read=read, timeout=timeout) for sql, params in statements]
            except UnavailableError:
                pass  # the node does not serve its file now; ``transact`` below asks another node
        return self.db.transact(statements, read=read, timeout=timeout, command=command)

    def begin(self, read: str, timeout: float) -> str:
        assert self.db is not None
        self._transaction = self.db.begin(read=read, timeout=timeout)
        return self._transaction.command

    def rollback(self) -> None:
        if self._transaction is not None:  # else a process that was killed had opened the transaction
            self._transaction.rollback()

    def make(self, name: str, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Make a call: of the program itself, of its open transaction, or of its connection."""
        if name in ("open", "close", "transact", "begin", "rollback"):
            target: object = self
        elif name in ("execute", "commit"):
            target = self._transaction
        else:
            target = self.db
        return getattr(target, name)(*args, **named)


def main() -> None:
    """Make each call that standard input has, and write its answer to standard output."""
    calls = _Calls()
    while True:
        try:
            name, args, named = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        value, error = None, None
        try:
            value = calls.make(name, args, named)
        except BedrockishError as caught:
            error = pack_error(caught)
        token = calls.db.token if calls.db is not None else None
        pickle.dump((value, error, token), sys.stdout.buffer)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
