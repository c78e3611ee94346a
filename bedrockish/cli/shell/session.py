"""The shell that runs statements and dot-commands, for scripts and the prompt, and prints their results."""

import shlex
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TextIO

from bedrockish.api.requests import Params, Rows
from bedrockish.cli.output import BOX, Style, print_rows
from bedrockish.cli.safe_text import harmless, is_terminal, write
from bedrockish.cli.shell.parameters import Parameters
from bedrockish.cli.shell.script import ScriptCommand, ScriptStatement, Unit, group, items
from bedrockish.client.blocking import Connection
from bedrockish.errors import BedrockishError, UsageError

NESTED_MAX = 20


class QuitShell(Exception):  # noqa: N818  (not an error)
    """Raised by .quit: the rest of a script is not run."""


@dataclass(frozen=True, slots=True)
class DotCommand:
    """A dot-command."""

    usage: str  # the command's arguments, for error texts and .help
    says: str  # the command's description, for .help
    run: Callable[["Shell", list[str]], None]  # runs the command with the words of its line
    # ``least`` and ``most``: how many words it takes.
    least: int = 0
    most: int = 0


class Shell:
    """A session at a cluster, which runs statements and dot-commands and prints their results."""

    def __init__(
        self,
        connection: Connection,  # the session's connection
        url: str | None,  # the connection's URL, for commands that open a client; None for the environment's URL
        mode: str,  # the mode in which rows are printed
        *,
        read: str | None,  # how fresh reads must be; None for the URL's value
        commands: Mapping[str, DotCommand],  # the dot-commands, by name
    ) -> None:
        self.connection, self.url = connection, url
        self._commands = commands
        self.style = Style(mode)  # the style in which rows are printed
        self.read = read
        self.timer = False  # whether the time of each statement is printed
        self.out: TextIO | None = None  # the file for the results; None for standard output
        self.is_once = False  # whether ``out`` is closed after the next statement
        self.parameters = Parameters()  # the values that .parameter has set, by name
        self.changed_schema = 0  # counts the changes of the schema, after which completion reads the names again
        self._nested = 0

    def close(self) -> None:
        """Close the file that .output has opened."""
        if self.out is not None:
            self.out.close()
        self.out, self.is_once = None, False

    def run_all(self, parts: Iterable[Unit | ScriptStatement | ScriptCommand]) -> None:
        """Run parts of scripts one after the other.

        Raises:
            BedrockishError: the first error, with the number of its line; the rest was not run.
        """
        for part in parts:
            try:
                self.run(part)
            except BedrockishError as error:
                raise type(error)(f"{_where(part, error)}: {error.message}", **error.details) from error

    def run(self, part: Unit | ScriptStatement | ScriptCommand) -> None:
        """Run one statement, one transaction or one dot-command, and print its results.

        Raises:
            BedrockishError: the node's error.
            QuitShell: the command was .quit.
        """
        if isinstance(part, ScriptCommand):
            self._command(part.text)
            return
        try:
            self._run([piece.sql for piece in part.pieces] if isinstance(part, Unit) else [part.sql])
        finally:
            if self.is_once:
                self.close()

    def _run(self, texts: list[str]) -> None:
        began = time.perf_counter()
        if len(texts) == 1:
            results = [self.query(texts[0], self.parameters.bind(texts[0]))]
        else:
            bound = [(text, self.parameters.bind(text)) for text in texts]
            results = self.connection.transact(bound, read=self.read)
        took = time.perf_counter() - began
        self.changed_schema += any(text[:6].upper() in ("CREATE", "DROP T", "DROP V", "ALTER ") for text in texts)
        for rows in results:
            self.print(rows)
        if self.timer:
            attempts = max((rows.attempts for rows in results), default=1)
            self.say(f"Run Time: real {took:.3f}" + (f" ({attempts} attempts)" if attempts > 1 else ""))

    def query(self, sql: str, params: Params = None) -> Rows:
        """Run one statement, in the open transaction if there is one."""
        return self.connection.execute(sql, params, read=self.read)

    def print(self, rows: Rows) -> None:
        """Print rows in the present style."""
        print_rows(rows, self.style, self.out)

    def say(self, text: str) -> None:
        """Print a line, or several."""
        write((harmless(text) if is_terminal(self.out) else text) + "\n", self.out)

    def restyle(self, **changes: Any) -> None:
        """Change the style in which rows are printed from now on."""
        self.style = replace(self.style, **changes)

    @property
    def is_for_people(self) -> bool:
        """Whether results are printed for a person: as boxes, to standard output."""
        return self.style.mode == BOX and self.out is None

    def read_file(self, path: str) -> None:
        """Run the script in a file.

        Raises:
            UsageError: the file cannot be read, or reads itself.
            BedrockishError: see ``run_all``.
        """
        if self._nested >= NESTED_MAX:
            raise UsageError(f"{path}: {NESTED_MAX} scripts read each other; does one read itself?")
        self._nested += 1
        try:
            parts = items(Path(path).read_text(encoding="utf-8"), path)
            # Within an open transaction, the file's statements belong to that transaction.
            self.run_all(list(parts) if self.connection.in_transaction else list(group(parts)))
        except UnicodeDecodeError as error:
            raise UsageError(f"{path}: this is not UTF-8 text") from error
        finally:
            self._nested -= 1

    def roll_back(self) -> bool:
        """Roll back the open transaction, if there is one; return whether there was one."""
        if not self.connection.in_transaction:
            return False
        with suppress(BedrockishError):
            self.connection.execute("ROLLBACK")
        return True

    def _command(self, text: str) -> None:
        commands = self._commands
        name, _, rest = text.partition(" ")
        found = commands.get(name[1:]) or commands.get({"exit": "quit", "q": "quit", "h": "help"}.get(name[1:], ""))
        if found is None:
            close = get_close_matches(name[1:], commands, n=1, cutoff=0.5)
            hint = f"did you mean .{close[0]}?" if close else ".help lists what there is"
            raise UsageError(f"there is no {name}; {hint}")
        try:
            words = shlex.split(rest)
        except ValueError as error:
            raise UsageError(f"{text}: {str(error).lower()}") from error
        if not found.least <= len(words) <= found.most:
            raise UsageError(f"write .{name[1:]} {found.usage}".rstrip())
        try:
            found.run(self, words)
        except BrokenPipeError:  # the reader of the output has gone: not the command's mistake
            raise
        except OSError as error:
            raise UsageError(f"{error.filename or name}: {error.strerror or error}") from error


def _where(part: Unit | ScriptStatement | ScriptCommand, error: BedrockishError) -> str:
    """Return the place in the script of the statement that caused an error."""
    if not isinstance(part, Unit):
        return part.where
    culprit = error.details.get("sql")
    return next((piece for piece in part.pieces if piece.sql == culprit), part.pieces[0]).where
