"""The JSON of requests and answers: statements in a body, options in a URL, answers and errors as bytes. Pure.

Values that JSON lacks are objects with one key: ``{"base64": "…"}`` is a blob, ``{"float": "inf"}`` an infinite number.
Integers are written exactly, with up to 64 bits; a reader of the JSON may round them.
"""

import base64
import binascii
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn
from urllib.parse import parse_qsl

from bedrockish.api.requests import (
    Answer,
    Request,
    Result,
    Statement,
    Token,
    check_cluster,
    check_command,
    check_modes,
    check_params,
    check_timeout,
    decode_results,
    open_token,
    seal_token,
)
from bedrockish.api.url import suggest
from bedrockish.api.wire import STATEMENTS_MAX
from bedrockish.errors import (
    BedrockishError,
    ConflictError,
    ForbiddenError,
    OutcomeUnknownError,
    ProtocolMismatchError,
    PrunedError,
    TooLargeError,
    UnavailableError,
    UsageError,
    pack_error,
)
from bedrockish.sqltext.session_values import shown_names
from bedrockish.sqltext.statement_ends import check_statement

BLOB, FLOAT = "base64", "float"
OPTIONS = ("read", "isolation", "timeout", "command", "token")
ROWS, SHAPES = "rows", ("arrays", "objects")
EXAMPLE = '["SELECT 1", ["INSERT INTO t VALUES (?, ?)", 1, "one"]]'
INFINITIES = {"inf": math.inf, "-inf": -math.inf}


# --- requests ---


def read_statements(body: bytes) -> tuple[Statement, ...]:
    """Parse the body of a request; return its statements.

    Raises:
        UsageError: the body is not a list of statements.
    """
    value = read_json(body)
    if not isinstance(value, list) or not 0 < len(value) <= STATEMENTS_MAX:
        raise UsageError(f"the body should be a JSON array of 1 to {STATEMENTS_MAX} statements, such as {EXAMPLE}")
    return tuple(_statement(place, one) for place, one in enumerate(value, 1))


def read_pairs(query: bytes) -> list[tuple[str, str]]:
    """Parse the query of a URL; return its pairs of name and value, in which a name may be repeated.

    Raises:
        UsageError: the query is not UTF-8. Replacing bad bytes could make two command ids equal.
    """
    if not query:
        return []
    try:
        return parse_qsl(query.decode("latin-1"), keep_blank_values=True, errors="strict")
    except UnicodeDecodeError as error:
        raise UsageError(f"the URL's options are not UTF-8 text: {error}") from error
    except ValueError as error:
        raise UsageError(f"the URL's options cannot be read: {error}") from error


def read_question(pairs: Iterable[tuple[str, str]]) -> tuple[tuple[Statement, ...], list[tuple[str, str]]]:
    """Parse the single statement in a URL's options; return the statement, and the other options.

    Raises:
        UsageError: the statement is missing, or its parameters are wrong.
    """
    found: dict[str, str] = {}
    rest: list[tuple[str, str]] = []
    for name, value in pairs:
        if name not in ("sql", "params"):
            rest.append((name, value))
        elif name in found:
            raise UsageError(f"the option {name!r} is given twice; leave one out")
        else:
            found[name] = value
        if name == "command":
            raise UsageError("a query in a URL takes no command id: it only reads, and can be sent again unchanged")
    if "sql" not in found:
        raise UsageError("the URL has no statement; write it as ?sql=SELECT%201, with its parameters as &params=[1]")
    try:
        params = read_json(found.get("params", "[]").encode())
    except UsageError as error:
        raise UsageError(error.message.replace("the body", "params")) from error
    if not isinstance(params, list | dict):
        raise UsageError('params should be a JSON array, or an object with names, such as {"id": 1}')
    return (_statement(1, [found["sql"], *(params if isinstance(params, list) else [params])]),), rest


def read_shape(pairs: Iterable[tuple[str, str]]) -> tuple[bool, list[tuple[str, str]]]:
    """Return whether ``rows=objects`` asks for each row as an object, and the URL's other options.

    Raises:
        UsageError: the option is given twice, or has an unknown value.
    """
    shapes = [value for name, value in pairs if name == ROWS]
    if len(shapes) > 1:
        raise UsageError(f"the option {ROWS!r} is given twice; leave one out")
    if shapes and shapes[0] not in SHAPES:
        raise UsageError(f"the option {ROWS} cannot be {shapes[0]!r}; {suggest(shapes[0], SHAPES)}")
    return shapes == ["objects"], [(name, value) for name, value in pairs if name != ROWS]


def read_json(body: bytes) -> Any:
    """Parse a JSON body; return its value.

    Raises:
        UsageError: the body is not JSON, or has an invalid text or an infinite number.
    """
    try:
        value = _decode(body.decode())
        if b"\\u" in body:  # only escapes can make lone surrogates, which are not valid text
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeDecodeError as error:
        raise UsageError(f"the body is not UTF-8 text: {error}") from error
    except UnicodeEncodeError as error:
        raise UsageError("the body has half of a surrogate pair in a text; send both halves, or none") from error
    except RecursionError as error:
        raise UsageError("the body is nested too deeply") from error
    except ValueError as error:
        raise UsageError(f"the body is not JSON: {error}") from error
    return value


def _no_constant(text: str) -> NoReturn:
    raise UsageError(f'the body has {text}, which is not JSON; write null, or {{"{FLOAT}": "inf"}} for infinity')


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise UsageError(f'the number {text[:40]} in the body is too large; write {{"{FLOAT}": "inf"}} for infinity')
    return value


_decode = json.JSONDecoder(parse_constant=_no_constant, parse_float=_finite).decode


def _statement(place: int, one: object) -> Statement:
    where = f"statement {place}"
    if isinstance(one, str):
        return Statement(_sql(where, one))
    if not isinstance(one, list) or not one or not isinstance(one[0], str):
        raise UsageError(f"{where} should be an SQL text, or an array of an SQL text and its parameters")
    sql, params = _sql(where, one[0]), one[1:]
    if len(params) == 1 and isinstance(params[0], dict) and not _is_special(params[0]):
        named = {name: _param(f"{where}: parameter :{name}", value) for name, value in params[0].items()}
        return Statement(sql, _checked(where, named))
    listed = [_param(f"{where}: parameter {number}", value) for number, value in enumerate(params, 1)]
    return Statement(sql, _checked(where, listed) if listed else None)


def _sql(where: str, sql: str) -> str:
    if not sql.strip():
        raise UsageError(f"{where} is empty")
    try:
        return check_statement(sql)
    except UsageError as error:
        raise UsageError(f"{where}: {error.message}", **error.details) from error


def _checked(where: str, params: Mapping[str, Any] | Sequence[Any]) -> Any:
    try:
        return check_params(params)
    except UsageError as error:
        raise UsageError(f"{where}: {error.message}") from error


def _is_special(value: Mapping[str, object]) -> bool:
    return len(value) == 1 and next(iter(value)) in (BLOB, FLOAT)


def _param(where: str, value: object) -> object:
    if not isinstance(value, list | dict):
        return value
    if isinstance(value, dict) and _is_special(value):
        ((kind, text),) = value.items()
        if kind == FLOAT and isinstance(text, str) and text in INFINITIES:
            return INFINITIES[text]
        if kind == BLOB and isinstance(text, str):
            try:
                return base64.b64decode(text, validate=True)
            except (binascii.Error, ValueError) as error:
                raise UsageError(f"{where} is not base64: {error}") from error
    raise UsageError(
        f'{where} should be null, a number, a text, {{"{BLOB}": "…"}} or {{"{FLOAT}": "inf"}}; '
        "parameters by name are one object after the SQL text"
    )


def read_request(
    statements: tuple[Statement, ...],  # the statements of the command
    pairs: Sequence[tuple[str, str]],  # the options in the URL
    key: str | None,  # the header Idempotency-Key
    fresh: str,  # the id of the command if none is given
    cluster_id: str,  # the id of this cluster, to which a token must belong
    *,
    read_only: bool,  # whether the request is refused if it writes
) -> Request:
    """Return the request that statements and a URL's options make, after checking it.

    Raises:
        ForeignClusterError: the token belongs to another cluster.
        UsageError: an option is wrong.
    """
    options: dict[str, str] = {}
    for name, value in pairs:
        if name not in OPTIONS:
            raise UsageError(f"there is no option {name!r}; {suggest(name, (*OPTIONS, ROWS))}")
        if name in options:
            raise UsageError(f"the option {name!r} is given twice; leave one out")
        options[name] = value
    if key is not None:
        key = key[1:-1] if len(key) > 1 and key[0] == key[-1] == '"' else key
        if options.setdefault("command", key) != key:
            raise UsageError("the option command and the header Idempotency-Key differ; give one of them")
    command = check_command(options.get("command", fresh))
    read, isolation = options.get("read", "session"), options.get("isolation", "serializable")
    check_modes(read, isolation)
    try:
        timeout_s = check_timeout(float(options.get("timeout", "30")))
    except ValueError as error:
        raise UsageError(f"timeout={options['timeout']!r} is not a number of seconds") from error
    token = _read_token(options.get("token", ""), cluster_id)
    return Request(command, statements, read, isolation, token, timeout_s, read_only=read_only)


def _read_token(text: str, cluster_id: str) -> Token:
    if not text:
        return Token()
    token, given = open_token(_token_bytes(text))
    check_cluster("the session token", given, cluster_id)
    return token


def _token_bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as error:
        raise UsageError("the token is not one that an earlier answer gave") from error


# --- answers ---


def write_json(value: object) -> bytes:
    """Return a value as JSON. Lone surrogates in a text of the database are written as escapes."""
    return _encode(value).encode(errors="backslashreplace")


def _plain(value: object) -> object:
    return value.hex() if isinstance(value, bytes) else str(value)


_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_plain).encode


def unique_names(columns: Sequence[str]) -> list[str]:
    """Return the names of columns as unique keys of an object: ``a``, ``a:2``, ``a:3``."""
    taken = dict[str, int]()
    names = []
    for column in columns:
        name = column
        while name in taken:
            taken[column] += 1
            name = f"{column}:{taken[column]}"
        taken[name] = 1
        names.append(name)
    return names


def pack_answer(answer: Answer, cluster_id: str, *, objects: bool = False) -> dict[str, Any]:
    """Return an answer as plain values, ready for ``write_json``; rows as arrays or as ``objects``."""
    return {
        "results": [_result(result, objects=objects) for result in decode_results(answer.results)],
        "place": None if answer.place is None else list(answer.place),
        "attempts": answer.attempts,
        "token": pack_token(answer.token, cluster_id),
    }


def pack_token(token: Token, cluster_id: str) -> str:
    """Return a token, with the id of its cluster, as base64 text."""
    return base64.urlsafe_b64encode(seal_token(token, cluster_id)).decode().rstrip("=")


def pack_row(row: Sequence[Any]) -> list[Any]:
    """Return a row as values of JSON; a blob or an infinite number is an object."""
    return [_value(value) for value in row]


def pack_object(names: Sequence[str], row: Sequence[Any]) -> dict[str, Any]:
    """Return a row as an object with the names of ``unique_names``."""
    return dict(zip(names, pack_row(row), strict=True))


def _result(result: Result, *, objects: bool) -> dict[str, Any]:
    columns = shown_names(result.columns)
    names = unique_names(columns) if objects else []
    return {
        "columns": list(columns),
        "rows": [pack_object(names, row) if objects else pack_row(row) for row in result.rows],
        "rowcount": result.rowcount,
        "lastrowid": result.lastrowid,
    }


def _value(value: Any) -> Any:
    if isinstance(value, bytes):
        return {BLOB: base64.b64encode(value).decode()}
    if isinstance(value, float) and not math.isfinite(value):
        return {FLOAT: str(value)}
    return value


def status_of(error: BedrockishError) -> int:
    """Return the HTTP status of an error."""
    match error:
        case TooLargeError():
            return 413
        case PrunedError():
            return 410
        case ForbiddenError():
            return 403
        case UsageError():
            return 400
        case ConflictError():
            return 409
        case UnavailableError():
            return 503
        case OutcomeUnknownError():
            return 504
        case ProtocolMismatchError():
            return 502
        case _:
            return 500


def write_error(error: BedrockishError) -> bytes:
    """Return an error as JSON: ``code``, ``message`` and ``details``."""
    return write_json(pack_error(error))
