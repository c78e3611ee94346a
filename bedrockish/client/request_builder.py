"""Builds checked requests, each with an id, from callers' arguments, and rows from the answers."""

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from bedrockish.api.requests import (
    NOTHING,
    Answer,
    Params,
    Request,
    Rows,
    Statement,
    Token,
    check_command,
    check_modes,
    check_params,
    rows_of,
)
from bedrockish.api.url import Target, parse_url
from bedrockish.api.wire import Answered, Told
from bedrockish.client.local_file import is_path, with_file_socket
from bedrockish.errors import CommandIdError, ConfigError, ProtocolMismatchError, UsageError
from bedrockish.sqltext.known_texts import remembered
from bedrockish.sqltext.session_settings import first_setting
from bedrockish.sqltext.session_values import SessionValues, asks_values, shown_names
from bedrockish.sqltext.statement_ends import check_statement
from bedrockish.sqltext.temporary import makes_temporary
from bedrockish_journal.model.command_id import make_id

URL_VARIABLE = "BEDROCKISH_URL"
Statements = Sequence[str | tuple[str, Params]]
Where = str | os.PathLike[str]  # a URL, or the path of a node's file


def target_of(url: Where | None) -> Target:
    """Return the target of a URL or of the path of a node's file; by default, of the variable BEDROCKISH_URL.

    Raises:
        ConfigError: neither argument nor variable is set, or the URL cannot be parsed.
    """
    url = url or os.environ.get(URL_VARIABLE)
    if isinstance(url, os.PathLike):
        return with_file_socket(Target((), local=os.fspath(url)))
    if url and is_path(url):
        return with_file_socket(Target((), local=url))
    if not url:
        raise ConfigError(f"no URL was given; pass one, such as bedrockish://localhost:7373, or set {URL_VARIABLE}")
    return with_file_socket(parse_url(url))


def make_request(command: str, statements: Statements, read: str, isolation: str, timeout_s: float) -> Request:
    """Return a request with a caller's statements, after checking its arguments.

    Raises:
        UsageError: an argument is invalid.
    """
    check_command(command)
    check_modes(read, isolation)
    made: list[Statement] = []
    text, checked = "", object()
    for sql, params in pairs_of(statements):
        if sql is not checked:  # a bulk load has one text for all its rows
            text = checked = check_statement(sql)
        made.append(Statement(text, check_params(params)))
    if not made:
        raise UsageError("a transaction needs at least one statement")
    return Request(command, tuple(made), read, isolation, Token(), timeout_s)


def command_rows(command: str, answer: Answer, statements: int) -> list[Rows]:
    """Return the results in the answer to a command, one for each statement.

    Raises:
        CommandIdError: the command was settled before it was committed (the answer of an older release).
        ProtocolMismatchError: the answer is not a list of results.
    """
    if answer.results == NOTHING:
        raise CommandIdError(
            f"command {command} was settled before it happened; it did not happen, and never will: send it under a new "
            "id",
            command=command,
            reason="settled",
        )
    return rows_of(answer, statements)


@remembered
def is_plain(sql: str) -> bool:
    """Return whether a text is one statement that does not depend on the session.

    Such a statement changes no setting, reads no value of the session, makes no TEMP object, and contains no ``(/*``,
    the mark of a value that a session has written into a text.
    """
    try:
        check_statement(sql)
    except UsageError:
        return False
    return first_setting(sql) is None and not (asks_values(sql) or makes_temporary(sql) or "(/*" in sql)


def pairs_of(statements: Statements) -> list[tuple[str, Params]]:
    """Return the text and the parameters of each statement that a caller has passed.

    Raises:
        UsageError: the argument is not a list of statements.
    """
    if isinstance(statements, str):
        return [(statements, None)]
    if not isinstance(statements, Iterable):
        raise UsageError(f"the statements should be a list, not {type(statements).__name__}; write [sql]")
    pairs: list[tuple[str, Params]] = []
    for one in statements:
        try:
            sql, params = (one, None) if isinstance(one, str) else one
        except (TypeError, ValueError):
            raise UsageError(
                f"statement {len(pairs) + 1} should be an SQL text, or a pair of a text and its parameters; write "
                "(sql, (value, …))"
            ) from None
        if not isinstance(sql, str):
            raise UsageError(f"a statement should be an SQL text, not {sql!r}")
        pairs.append((sql, params))
    return pairs


def with_values(statements: tuple[Statement, ...], values: SessionValues) -> tuple[Statement, ...]:
    """Return the statements of a request with the settings and values of its session written into them."""
    if len(statements) == 1:
        sql = values.write(statements[0].sql)
        return statements if sql is statements[0].sql else (replace(statements[0], sql=sql),)
    return _rewritten(statements, values.write_all([statement.sql for statement in statements]))


def with_settings_of(statements: tuple[Statement, ...], values: SessionValues) -> tuple[Statement, ...]:
    """Return the statements of a request with the session's settings written before them, and without its values."""
    return _rewritten(statements, values.set_before_all([statement.sql for statement in statements]))


def _rewritten(statements: tuple[Statement, ...], texts: Sequence[str]) -> tuple[Statement, ...]:
    if all(one.sql == sql for one, sql in zip(statements, texts, strict=True)):
        return statements
    return tuple(replace(one, sql=sql) for one, sql in zip(statements, texts, strict=True))


def note_results(results: list[Rows], values: SessionValues) -> list[Rows]:
    """Update a session's values from results; return the results with the column names of the caller's own texts."""
    values.see(results)
    return [
        one if (names := shown_names(one.columns)) is one.columns else replace(one, columns=names) for one in results
    ]


def map_of(reply: Answered | Told) -> dict[str, Any]:
    """Return the map in a node's reply.

    Raises:
        ProtocolMismatchError: the reply is not a map.
    """
    if not isinstance(reply, Told) or not isinstance(reply.value, Mapping):
        raise ProtocolMismatchError("the node's answer is not a map")
    return dict(reply.value)


def columns_of(reply: Answered | Told) -> list[tuple[str, str | None]]:
    """Return the columns in a node's reply.

    Raises:
        ProtocolMismatchError: the reply is not a list of columns.
    """
    try:
        if not isinstance(reply, Told):
            raise TypeError(reply)
        return [(name, declared) for name, declared in reply.value[0]["columns"]]
    except (LookupError, TypeError, ValueError) as error:
        raise ProtocolMismatchError("the node's answer is not columns") from error


def new_command() -> str:
    """Return a new unique command id, which begins with the present time."""
    return make_id(time.time_ns() // 1_000_000, os.urandom(10))
