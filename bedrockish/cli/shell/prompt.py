"""The prompt on a terminal: several lines for one statement, a history that is kept, and completion of names."""

import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import click
from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.filters import completion_is_selected, has_completions
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from bedrockish.cli.safe_text import visible
from bedrockish.cli.shell.dots import COMMANDS
from bedrockish.cli.shell.script import ScriptCommand, items
from bedrockish.cli.shell.session import QuitShell, Shell
from bedrockish.errors import BedrockishError
from bedrockish.sqltext import statement_ends as sqltext
from bedrockish_journal.model.plain_names import is_users

HISTORY_VARIABLE = "BEDROCKISH_HISTORY"
NAMES_S = 30.0  # age at which names are read again, because other clients may have changed the schema
WORD = re.compile(r"[\w$]+$")
_KEYWORDS = """
ABORT ADD AFTER ALL ALTER AND AS ASC BEFORE BEGIN BETWEEN BY CASCADE CASE CAST CHECK COLLATE COLUMN COMMIT
CONFLICT CONSTRAINT CREATE CROSS CURRENT_TIMESTAMP DEFAULT DEFERRABLE DELETE DESC DISTINCT DROP EACH ELSE END
EXCEPT EXISTS EXPLAIN FOREIGN FROM FULL GROUP HAVING IF IGNORE IN INDEX INNER INSERT INSTEAD INTERSECT INTO IS
JOIN KEY LEFT LIKE LIMIT NATURAL NOT NOTHING NULL OF OFFSET ON OR ORDER OUTER OVER PARTITION PRAGMA PRIMARY
RECURSIVE REFERENCES RELEASE RENAME REPLACE RETURNING RIGHT ROLLBACK ROW SAVEPOINT SELECT SET STRICT TABLE
THEN TO TRANSACTION TRIGGER UNION UNIQUE UPDATE USING VALUES VIEW WHEN WHERE WINDOW WITH WITHOUT
"""
KEYWORDS = tuple(_KEYWORDS.split())
NAMES = (
    "SELECT m.name, c.name FROM sqlite_schema m, pragma_table_xinfo(m.name) c "
    f"WHERE m.type IN ('table', 'view') AND {is_users('m.name')}"
)


class Names(Completer):
    """The completer of keywords, names of tables and columns, and dot-commands."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._tables: list[str] = []
        self._columns: list[str] = []
        self._seen = (-1, 0.0)

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:  # noqa: ARG002
        """Yield the completions of the word before the cursor."""
        before = document.text_before_cursor
        if before.startswith(".") and " " not in before:
            yield from (
                Completion(f".{name}", -len(before)) for name in COMMANDS if f".{name}".startswith(before.lower())
            )
            return
        found = WORD.search(before)
        if found is None:
            return
        word = found[0]
        self._refresh()
        for kind, names in (("table", self._tables), ("column", self._columns), ("", KEYWORDS)):
            for name in names:
                if name.lower().startswith(word.lower()) and name != word:
                    text = name.lower() if not kind and word.islower() else name
                    yield Completion(text, -len(word), display_meta=kind)

    def _refresh(self) -> None:
        """Read the names, but not in an open transaction, which would then have read the whole schema."""
        changed, at = self._seen
        now = time.monotonic()
        if self._shell.connection.in_transaction or (changed == self._shell.changed_schema and now - at < NAMES_S):
            return
        self._seen = (self._shell.changed_schema, now)
        with suppress(BedrockishError):
            rows = list(self._shell.connection.execute(NAMES, timeout=2.0))
            self._tables = sorted({str(table) for table, _ in rows})
            self._columns = sorted({str(column) for _, column in rows})


def is_complete(text: str) -> bool:
    """Return whether a text is complete, so that Enter runs it instead of beginning another line."""
    return text.startswith(".") or sqltext.is_complete(text)


def run_prompt(shell: Shell) -> None:
    """Read and run statements until the person leaves; an error is printed, and does not end the prompt."""
    click.echo(f"connected to {', '.join(shell.connection.nodes()) or 'a node'}; .help for help")
    session: PromptSession[str] = PromptSession(
        history=_history(),
        completer=Names(shell),
        complete_in_thread=True,
        complete_while_typing=False,
        multiline=True,
        key_bindings=_keys(),
        prompt_continuation="       ...> ",
    )
    while True:
        try:
            text = session.prompt("     begin> " if shell.connection.in_transaction else "bedrockish> ")
        except EOFError:
            break
        except KeyboardInterrupt:  # discards the typed text, as every shell does
            continue
        try:
            for part in items(text, "line"):
                shell.run(ScriptCommand(part.text.rstrip(";"), part.where) if isinstance(part, ScriptCommand) else part)
        except QuitShell:
            break
        except BedrockishError as error:
            click.echo(f"error: {visible(' '.join(error.message.split()))}", err=True)
        except KeyboardInterrupt:
            lost = shell.roll_back()
            said = "the open transaction was rolled back" if lost else "what was sent may still happen"
            click.echo(f"interrupted; {said}", err=True)
    if shell.roll_back():
        click.echo("the open transaction was rolled back", err=True)


def _history() -> History:
    try:
        path = Path(os.environ.get(HISTORY_VARIABLE) or Path.home() / ".bedrockish_history")
        path.touch(0o600)
    except (OSError, RuntimeError):  # without a home, as often in a container, the history lasts as long as the prompt
        return InMemoryHistory()
    return FileHistory(str(path))


def _keys() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("enter", filter=~completion_is_selected)
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if is_complete(buffer.text):
            buffer.validate_and_handle()
        else:
            buffer.insert_text("\n")

    @keys.add("enter", filter=has_completions & completion_is_selected)
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.complete_state = None

    return keys
