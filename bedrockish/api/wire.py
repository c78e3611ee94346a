"""The messages between a client and a node: one CBOR map for each call, and one for its reply.

Pure. Many calls may be under way on one link; ``id`` tells to which call a reply belongs. A reply with the id 0, which
no call has, is about the link itself. Unknown fields are ignored, unknown operations are refused.

    {"id": 7, "op": "execute", "command": "c0…", "statements": [["SELECT 1", null]], "read": "session",
     "isolation": "serializable", "token": bytes | null, "timeout": 10.0, "longest": 30.0, "traceparent": "00-…"}
    {"id": 7, "op": "member", "command": "c0…", "change": {"action": "add", "node": "D", "address": "host:port", …},
     "token": bytes | null, "timeout": 10.0}
    {"id": 7, "op": "begin" | "statements" | "commit" | "rollback", …}                        like "execute"
    {"id": 7, "op": "begin" | "statements", "temporary": "+f3…", …}      in a session with TEMP objects (of that name)
    {"id": 7, "op": "commit", "prepared": bytes, …}           of a transaction that a program has executed
    {"id": 7, "op": "commit" | "settle", "for": "ann", …}     from a learner, for that user's program
    {"id": 7, "op": "settle", "digest": bytes, …}         like "execute", with the digest of the command's request
    {"id": 7, "op": "stream" | "fetch" | "close", …}      like "execute"; the reply to a stream has "more": true | false
    {"id": 7, "op": "status" | "nodes" | "ping"}          {"id": 7, "op": "join" | "snapshot"}
    {"id": 7, "op": "chunk", "offset": 0}
    {"id": 7, "op": "explain" | "upkeep", …}
    {"id": 7, "op": "cancel", "asked": {"command": "c0…"} | {"call": 6}}    to a node whose HELLO has "cancels": true

    {"id": 7, "ok": true, "results": bytes, "token": bytes, "place": ["A", 3] | null, "attempts": 1}
    {"id": 7, "ok": true, "value": …}                     {"id": 7, "ok": false, "error": {code, message, details}}
"""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, assert_never

import cbor2

from bedrockish.api.requests import (
    Answer,
    MemberChange,
    Params,
    Request,
    Statement,
    Token,
    check_command,
    check_modes,
    check_params,
    check_timeout,
    decode_token,
)
from bedrockish.api.url import parse_address
from bedrockish.common.trace_context import read_traceparent
from bedrockish.errors import BedrockishError, ProtocolMismatchError, UsageError, pack_error, unpack_error
from bedrockish_journal.model.transaction import DIGEST_BYTES
from bedrockish_journal.model.value import value

EXECUTE, MEMBER, STATUS, NODES, PING = "execute", "member", "status", "nodes", "ping"
JOIN, SNAPSHOT, CHUNK, EXPLAIN, UPKEEP, CANCEL = "join", "snapshot", "chunk", "explain", "upkeep", "cancel"
BEGIN, STATEMENTS, COMMIT, ROLLBACK, SETTLE = STEPS = ("begin", "statements", "commit", "rollback", "settle")
BEGUN = "begun"  # a key in the details of an error: the transaction was begun, and is open despite the error
STREAM, FETCH, CLOSE = STREAM_STEPS = ("stream", "fetch", "close")
QUESTIONS = (STATUS, NODES, PING, JOIN, SNAPSHOT, EXPLAIN, UPKEEP, CANCEL)
OPS = (EXECUTE, *STEPS, *STREAM_STEPS, MEMBER, *QUESTIONS, CHUNK)
CHANGE_WORDS = ("action", "node", "address", "successor", "store", "role", "secret", "table")
CLUSTER_ID = "cluster_id"  # the key of the cluster's id in a node's HELLO
BY_COLUMN = "by_column"  # the key in the HELLO of a client that reads large results by column, with the value true
CANCELS = "cancels"  # the key in the HELLO of a node that stops cancelled calls, with the value true
UNTAKEN = "untaken"  # a key in the details of a link's last error: the node has executed no unanswered call
CANCEL_BYTES_MAX = 1_000
LINK_ID, STATEMENTS_MAX, TEMPORARY_CHARACTERS_MAX = 0, 10_000, 100


@value
class Execute:
    """Run a command."""

    id: int
    request: Request


@value
class Step:
    """One step of an interactive transaction, or of a streamed result. The reply is an answer.

    A transaction is identified by the command id of its COMMIT. ``begin`` may carry the first statements. ``settle``
    decides whether the command was committed or never will be; in the latter case the results are empty. A ``commit``
    with ``prepared`` carries a transaction that a program has executed on the node's file. With ``owner``, a learner
    sends the step for a program of that user, because a learner commits nothing itself.

    ``stream`` opens a streamed result (the answer has columns and no rows), ``fetch`` gets its next rows, and ``close``
    closes it.
    """

    id: int
    request: Request
    op: str
    prepared: bytes = b""
    owner: str | None = None


@value
class Ask:
    """Ask a node about itself or a statement, or have it run an operator's task.

    ``status``, ``nodes`` and ``ping`` have no arguments. ``join`` returns the facts that a new node needs. ``snapshot``
    makes a copy of the file and returns its size and SHA-256. ``explain`` explains a statement, or returns its columns
    if ``asked`` has ``columns``. ``upkeep`` runs the task in ``asked``. ``cancel`` stops a command, or another call,
    whose caller no longer waits.
    """

    id: int
    op: str
    statement: Statement | None = None
    asked: Mapping[str, Any] | None = None


@value
class AskChunk:
    """Ask for a piece of the copy that was made on this link."""

    id: int
    offset: int


Call = Execute | Step | Ask | AskChunk


@value
class Answered:
    """The reply to a command or step that succeeded."""

    id: int
    answer: Answer


@value
class Told:
    """The reply to any other call that succeeded."""

    id: int
    value: Any


@value
class Failed:
    """The reply to a call that failed."""

    id: int
    error: BedrockishError


Reply = Answered | Told | Failed


class MalformedCallError(UsageError):
    """Raised when a client's bytes are not a call. The node has executed nothing.

    ``id`` is the id of the call if it could be decoded, else 0.
    """

    code = "malformed"

    def __init__(self, message: str, call_id: int = LINK_ID, **details: Any) -> None:
        super().__init__(message, **details)
        self.id = call_id


def encode_call(call: Call) -> bytes:
    """Encode a call.

    Raises:
        UsageError: a text in the call cannot be encoded (half a surrogate pair).
    """
    packed: dict[str, Any]
    match call:
        case Execute(number, request) if request.change is not None:
            packed = {
                "id": number,
                "op": MEMBER,
                "command": request.command,
                "change": {one.name: getattr(request.change, one.name) for one in fields(request.change)},
                "token": request.token.encode(),
                "timeout": request.timeout_s,
            }
        case Execute(number, request):
            return encode_request(number, EXECUTE, request, attempt_of(request))
        case Step(number, request, op, prepared, owner):
            return encode_request(number, op, request, attempt_of(request), prepared, owner)
        case Ask(number, op, statement, asked):
            packed = {"id": number, "op": op} | ({} if asked is None else {"asked": dict(asked)})
            if statement is not None:
                packed["statement"] = [statement.sql, _pack_params(statement.params)]
        case AskChunk(number, offset):
            packed = {"id": number, "op": CHUNK, "offset": offset}
        case _:
            assert_never(call)
    return _encoded(packed)


def decode_call(payload: bytes, user: str = "", *, by_column: bool = False) -> Call:
    """Decode a call.

    Args:
        user: the authenticated user; a user named in the bytes is ignored.
        by_column: whether the client reads the rows of large results by column.

    Raises:
        MalformedCallError: the bytes are not a call.
    """
    try:
        packed = cbor2.loads(payload)
    except (cbor2.CBORError, ValueError, TypeError) as error:
        raise MalformedCallError(f"these {len(payload)} bytes are not a call: {error}") from error
    if type(packed) is not dict:
        raise MalformedCallError(f"a call should be a map, not {type(packed).__name__}")
    number = packed.get("id")
    if type(number) is not int or not 0 < number < 1 << 63:
        raise MalformedCallError(f"a call cannot have the id {number!r}; number them from 1")
    op = packed.get("op")
    try:
        if op == EXECUTE:
            return Execute(number, _decode_request(packed, user, by_column=by_column))
        if op in STEPS or op in STREAM_STEPS:
            prepared = packed.get("prepared", b"") if op == COMMIT else b""
            if type(prepared) is not bytes:
                raise UsageError("a prepared transaction should be bytes")
            owner = packed.get("for")
            if owner is not None and (op not in (COMMIT, SETTLE) or type(owner) is not str):
                raise UsageError("the field 'for' is text, the user of a learner's program, for COMMIT and SETTLE")
            least = int(op in (STATEMENTS, STREAM))
            request = _decode_request(packed, user, least, by_column=by_column)
            return Step(number, request, op, prepared, owner)
        if op == MEMBER:
            return Execute(number, _decode_change(packed, user))
        if op == EXPLAIN:
            asked = packed.get("asked")
            asked = _read_explained(asked) if isinstance(asked, Mapping) else None
            return Ask(number, op, _statement(1, packed.get("statement")), asked)
    except UsageError as error:
        raise MalformedCallError(error.message, number) from error
    if op in QUESTIONS:
        asked = packed.get("asked")
        return Ask(number, op, None, asked if isinstance(asked, Mapping) else None)
    if op == CHUNK and type(packed.get("offset")) is int:
        return AskChunk(number, packed["offset"])
    known = f"there is {', '.join(OPS)}"
    raise MalformedCallError(f"there is no operation {op!r}; {known}; update a client of an older release", number)


def is_cancel(payload: bytes) -> bool:
    """Return whether a payload is the call that cancels another one."""
    if len(payload) > CANCEL_BYTES_MAX:
        return False
    try:
        call = decode_call(payload)
    except MalformedCallError:
        return False
    return isinstance(call, Ask) and call.op == CANCEL


def _read_explained(asked: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the options of an ``explain`` for columns (and the open ``transaction``, if any); None for any other."""
    if asked.get("columns") is not True:
        return None
    transaction = asked.get("transaction")
    return {"columns": True} | ({"transaction": transaction} if isinstance(transaction, str) else {})


def _decode_request(packed: Mapping[str, Any], user: str, least: int = 1, *, by_column: bool = False) -> Request:
    statements = packed.get("statements")
    if not isinstance(statements, list) or not least <= len(statements) <= STATEMENTS_MAX:
        raise UsageError(f"a command should be a list of 1 to {STATEMENTS_MAX} statements")
    read: Any = packed.get("read")
    isolation: Any = packed.get("isolation")
    check_modes(read, isolation)
    longest = packed.get("longest")
    return Request(  # by position, because keywords are slower, and each call of a client makes a Request
        check_command(packed.get("command")),
        tuple([_statement(place, pair) for place, pair in enumerate(statements, 1)]),
        read,
        isolation,
        _token(packed),
        check_timeout(packed.get("timeout")),
        None,
        False,
        check_timeout(longest) if longest is not None else 0.0,
        user,
        read_traceparent(packed["traceparent"]) if "traceparent" in packed else "",
        _digest(packed) if packed["op"] == SETTLE and "digest" in packed else b"",
        _temporary(packed) if "temporary" in packed else "",
        by_column,
    )


def _temporary(packed: Mapping[str, Any]) -> str:
    name = packed["temporary"]
    if not isinstance(name, str) or not 0 < len(name) <= TEMPORARY_CHARACTERS_MAX:
        raise UsageError(f"the name of TEMP objects should be a text of 1 to {TEMPORARY_CHARACTERS_MAX} characters")
    return name


def _digest(packed: Mapping[str, Any]) -> bytes:
    digest = packed["digest"]
    if type(digest) is not bytes or len(digest) != DIGEST_BYTES:
        raise UsageError(f"the digest of a settled command should have {DIGEST_BYTES} bytes")
    return digest


def _decode_change(packed: Mapping[str, Any], user: str) -> Request:
    given = packed.get("change")
    if not isinstance(given, Mapping):
        raise UsageError("a change of the members should be a map")
    words = {name: given.get(name, "") for name in CHANGE_WORDS}
    if not all(isinstance(word, str) for word in words.values()) or type(given.get("force", False)) is not bool:
        raise UsageError("a change of the members should consist of texts, and of 'force', which is true or false")
    if words["address"]:
        words["address"] = str(parse_address(words["address"], where=f"the address of {words['node']}"))
    level = given.get("level")
    if type(level) is not int or not 0 < level < 1 << 16:
        raise UsageError("the release level of a node should be a small positive number")
    change = MemberChange(**words, force=given.get("force", False), level=level)
    timeout_s = check_timeout(packed.get("timeout"))
    return Request(
        check_command(packed.get("command")), (), token=_token(packed), timeout_s=timeout_s, change=change, user=user
    )


def _token(packed: Mapping[str, Any]) -> Token:
    token = packed.get("token")
    if token is None:
        return Token()
    if type(token) is not bytes:
        raise UsageError("a session token should be bytes")
    return decode_token(token)


def _statement(place: int, pair: object) -> Statement:
    if not (isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str)):
        raise UsageError(f"statement {place} should be a list of SQL text and parameters")
    return Statement(pair[0], check_params(pair[1]))


AttemptFields = tuple[Token, float, float, str]
"""The fields of a request that differ between attempts: ``token``, ``timeout_s``, ``longest_s`` and ``read``."""


def attempt_of(request: Request) -> AttemptFields:
    """Return the fields of a request that differ between attempts."""
    return request.token, request.timeout_s, request.longest_s, request.read


def encode_request(
    number: int, op: str, request: Request, attempt: AttemptFields, prepared: bytes = b"", owner: str | None = None
) -> bytes:
    """Encode the call of a request, or of one of its steps.

    Args:
        request: the request; a change of the members is encoded by ``encode_call``.
        attempt: the values that are sent in place of the request's own.
        prepared: see ``Step``; sent only with ``commit``.
        owner: see ``Step``.

    Raises:
        UsageError: a text in the request cannot be encoded (half a surrogate pair).
    """
    token, timeout_s, longest_s, read = attempt
    packed: dict[str, Any] = {
        "id": number,
        "op": op,
        "command": request.command,
        "read": read,
        "isolation": request.isolation,
        "token": token.encode() if token.vector or token.clock else None,
        "timeout": timeout_s,
        "statements": [(one.sql, _pack_params(one.params)) for one in request.statements],
    }
    if prepared and op == COMMIT:
        packed["prepared"] = prepared
    if owner is not None:
        packed["for"] = owner
    if longest_s:
        packed["longest"] = longest_s
    if request.trace:
        packed["traceparent"] = request.trace
    if request.temporary:
        packed["temporary"] = request.temporary
    if request.digest:
        packed["digest"] = request.digest
    return _encoded(packed)


def _encoded(packed: dict[str, Any]) -> bytes:
    try:
        return cbor2.dumps(packed)
    except (cbor2.CBORError, ValueError) as error:
        raise UsageError(f"a text in the request cannot be sent: {error}") from error


def _pack_params(params: Params) -> Params:
    if params is None or type(params) is list:
        return params
    return dict(params) if isinstance(params, Mapping) else list(params)


def _plain(encoder: Any, value: object) -> None:
    # An error's details may hold values of any type; a type that CBOR does not know is sent as text.
    encoder.encode(str(value))


def encode_reply(reply: Reply) -> bytes:
    """Encode a reply."""
    packed: dict[str, Any]
    if isinstance(reply, Answered):  # without ``match``, which would take longer than the encoding
        answer = reply.answer
        packed = {
            "id": reply.id,
            "ok": True,
            "results": answer.results,
            "token": answer.token.encode(),
            "place": answer.place,
            "attempts": answer.attempts,
        }
        if answer.more:
            packed["more"] = True
    elif isinstance(reply, Told):
        packed = {"id": reply.id, "ok": True, "value": reply.value}
    else:
        packed = {"id": reply.id, "ok": False, "error": pack_error(reply.error)}
    return cbor2.dumps(packed, default=_plain)


def encode_reply_parts(reply: Reply) -> tuple[bytes, ...]:
    """Encode a reply in parts; the results of an answer are a part of their own, so that no step copies long ones."""
    if not isinstance(reply, Answered):
        return (encode_reply(reply),)
    results = reply.answer.results
    before, key, after = encode_reply(replace(reply, answer=replace(reply.answer, results=b""))).partition(_NO_RESULTS)
    length = cbor2.dumps(len(results))
    return before + key[:-1] + bytes((length[0] | _BYTES,)) + length[1:], results, after


_BYTES = 0x40  # the kind of a byte string in CBOR
_NO_RESULTS = cbor2.dumps("results") + cbor2.dumps(b"")


def decode_reply(payload: bytes) -> Reply:
    """Decode a reply.

    Raises:
        ProtocolMismatchError: the bytes are not a reply.
    """
    try:
        packed = cbor2.loads(payload)
    except (cbor2.CBORError, ValueError, TypeError) as error:
        raise ProtocolMismatchError(f"the node sent {len(payload)} bytes that are not a reply: {error}") from error
    number = packed.get("id") if type(packed) is dict else None
    if type(number) is not int or not 0 <= number < 1 << 63 or type(packed.get("ok")) is not bool:
        raise ProtocolMismatchError("the node sent a map that is not a reply")
    if not packed["ok"]:
        return Failed(number, _decode_error(packed.get("error")))
    if "results" not in packed:
        return Told(number, packed.get("value"))
    results, attempts = packed["results"], packed.get("attempts")
    if type(results) is not bytes or type(packed.get("token")) is not bytes or type(attempts) is not int:
        raise ProtocolMismatchError("the node sent an answer without results, token and number of attempts")
    try:
        token = decode_token(packed["token"])
    except UsageError as error:
        raise ProtocolMismatchError(f"the node sent an answer with a malformed token: {error}") from error
    place = packed.get("place")
    place = None if place is None else _place(place)
    return Answered(number, Answer(results, token, place, attempts, packed.get("more") is True))


def _decode_error(packed: object) -> BedrockishError:
    if not isinstance(packed, Mapping):
        raise ProtocolMismatchError("the node sent a failure that does not say what failed")
    details = packed.get("details")
    if isinstance(details, Mapping):  # drop keys that would collide with parameters of the errors' constructors
        kept = {name: value for name, value in details.items() if isinstance(name, str)}
        packed = {**packed, "details": {n: v for n, v in kept.items() if n not in ("self", "message", "call_id")}}
    return unpack_error(packed)


def _place(value: object) -> tuple[str, int]:
    if isinstance(value, list | tuple) and len(value) == 2 and isinstance(value[0], str) and type(value[1]) is int:
        return value[0], value[1]
    raise ProtocolMismatchError(f"the node sent an answer whose place in the journal is {value!r}")
