"""The operations of a node over HTTP, in one table: the server routes by it, and OpenAPI shows it.

Tests hold the document to the standard, and let a property-based tester hold a running node to the document.
"""

from dataclasses import dataclass, field
from typing import Any

from bedrockish import __version__
from bedrockish.api.json_forms import SHAPES
from bedrockish.api.requests import ISOLATIONS, READ_LEVELS
from bedrockish.api.wire import COMMAND_CHARACTERS_MAX, STATEMENTS_MAX
from bedrockish_journal.feed.change_feed import CLUSTER_PATTERN, PLACE_PATTERN

Schema = dict[str, Any]
WAIT_S_MAX = 300  # of a long poll; a proxy in between gives up earlier

TEXT: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer", "minimum": 0}
BLOB: Schema = {
    "type": "object",
    "properties": {"base64": {"type": "string", "contentEncoding": "base64", "pattern": "^([A-Za-z0-9+/]{4})*$"}},
    "required": ["base64"],
    "additionalProperties": False,
}
INFINITE: Schema = {
    "type": "object",
    "properties": {"float": {"enum": ["inf", "-inf"]}},
    "required": ["float"],
    "additionalProperties": False,
}
INTEGER: Schema = {"type": "integer", "minimum": -(1 << 63), "maximum": (1 << 63) - 1, "format": "int64"}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


SCHEMAS: dict[str, Schema] = {
    "Value": {
        "description": "A value of SQLite: null, a number, a text, a blob, or an infinite number.",
        "anyOf": [{"type": "null"}, INTEGER, {"type": "number"}, TEXT, BLOB, INFINITE],
    },
    "Parameter": {
        "description": "A value to be bound; true and false become 1 and 0.",
        "anyOf": [_ref("Value"), {"type": "boolean"}],
    },
    "Sql": {"type": "string", "minLength": 1, "pattern": "\\S"},
    "Statement": {
        "description": "SQL; SQL and its parameters by position; or SQL and one object of parameters by name.",
        "anyOf": [
            _ref("Sql"),
            {"type": "array", "prefixItems": [_ref("Sql")], "items": _ref("Parameter"), "minItems": 1},
            {
                "type": "array",
                "prefixItems": [_ref("Sql"), {"type": "object", "additionalProperties": _ref("Parameter")}],
                "items": False,
                "minItems": 2,
            },
        ],
    },
    "Statements": {"type": "array", "minItems": 1, "maxItems": STATEMENTS_MAX, "items": _ref("Statement")},
    "Place": {
        "description": "Timeline and tick of the commit in the journal; null for what only read.",
        "anyOf": [
            {"type": "null"},
            {"type": "array", "prefixItems": [TEXT, COUNT], "items": False, "minItems": 2},
        ],
    },
    "Result": {
        "type": "object",
        "properties": {
            "columns": {"type": "array", "items": TEXT},
            "rows": {
                "description": "With rows=objects, a column whose name was there before is called a:2, a:3.",
                "anyOf": [
                    {"type": "array", "items": {"type": "array", "items": _ref("Value")}},
                    {"type": "array", "items": {"type": "object", "additionalProperties": _ref("Value")}},
                ],
            },
            "rowcount": {"type": "integer", "description": "Rows changed; -1 if the statement changes none by nature."},
            "lastrowid": {"anyOf": [{"type": "null"}, INTEGER]},
            "place": _ref("Place"),
        },
        "required": ["columns", "rows", "rowcount", "lastrowid"],
    },
    "Answer": {
        "type": "object",
        "properties": {
            "results": {"type": "array", "items": _ref("Result")},
            "place": _ref("Place"),
            "attempts": {"type": "integer", "minimum": 1, "description": "Above 1, conflicts were met."},
            "token": {"type": "string", "description": "What the session has seen now; send it with the next request."},
            "command": {"type": "string", "description": "The id of the command."},
        },
        "required": ["results", "place", "attempts", "token", "command"],
    },
    "Called": {
        "type": "object",
        "properties": {
            "value": {"description": "What the command returned."},
            "place": _ref("Place"),
            "attempts": {"type": "integer", "minimum": 1, "description": "Above 1, conflicts were met."},
            "token": TEXT,
            "command": TEXT,
        },
        "required": ["value", "place", "attempts", "token", "command"],
    },
    "Error": {
        "type": "object",
        "properties": {
            "code": {"type": "string", "description": "A stable word for programs."},
            "message": TEXT,
            "details": {"type": "object"},
        },
        "required": ["code", "message", "details"],
    },
    "Node": {
        "type": "object",
        "properties": {
            "address": TEXT,
            "role": {"enum": ["voter", "learner"]},
            "up": {"type": "boolean"},
            "applied": {"type": "object", "additionalProperties": COUNT},
            "silent_ms": COUNT,
            "unreachable": {"type": ["string", "null"]},
        },
        "required": ["address", "role", "up", "applied", "silent_ms"],
    },
    "Nodes": {"type": "object", "additionalProperties": _ref("Node")},
    "InDoubt": {
        "type": "object",
        "properties": {
            "txid": TEXT,
            "leader": TEXT,
            "age_ms": {"type": "integer"},
            "commands": {"type": "integer", "description": "How many commands share the transaction."},
        },
        "required": ["txid", "leader", "age_ms", "commands"],
    },
    "Status": {
        "type": "object",
        "properties": {
            "node": TEXT,
            "cluster": TEXT,
            "version": TEXT,
            "applied": {"type": "object", "additionalProperties": COUNT},
            "safe_lag_ms": {"anyOf": [{"type": "null"}, COUNT]},
            "nodes": _ref("Nodes"),
            "in_doubt": {"type": "array", "items": _ref("InDoubt")},
            "counts": {"type": "object", "additionalProperties": COUNT},
        },
        "required": ["node", "cluster", "version", "applied", "safe_lag_ms", "nodes", "in_doubt", "counts"],
    },
    "Events": {
        "type": "object",
        "properties": {
            "node": TEXT,
            "run": {"type": "string", "description": "Another one: the process is new, and numbers began anew."},
            "now_ms": {"type": "number"},
            "last": COUNT,
            "events": {
                "type": "array",
                "description": "Number, Unix milliseconds, kind, transaction, from, to, line, more facts.",
                "items": {"type": "array", "minItems": 8, "maxItems": 8},
            },
        },
        "required": ["node", "run", "now_ms", "last", "events"],
    },
    "Cluster": {
        "type": "object",
        "properties": {
            "node": TEXT,
            "cluster": TEXT,
            "nodes": {
                "type": "object",
                "additionalProperties": {
                    "type": "object",
                    "properties": {
                        "status": _ref("Status"),
                        "events": _ref("Events"),
                        "not_ready": {"type": "array", "items": TEXT},
                        "error": TEXT,
                    },
                },
            },
        },
        "required": ["node", "cluster", "nodes"],
    },
    "Activity": {
        "type": "object",
        "properties": {
            "columns": {"type": "array", "items": TEXT, "description": "What the values of a slice are."},
            "slices": {
                "description": "Ten seconds each, the oldest first, of one hour; null is what cannot be told.",
                "type": "array",
                "items": {"type": "array", "items": {"type": ["number", "null"]}},
            },
            "slow": {
                "description": "Statements that took long, with ? for each value; those first that took most.",
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {
                        "sql": TEXT,
                        **dict.fromkeys(("times", "longest_ms", "total_ms", "ago_ms"), COUNT),
                    },
                },
            },
            "transactions": {
                "description": "Open transactions, the oldest first.",
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {
                        **dict.fromkeys(("command", "client", "statement"), TEXT),
                        **dict.fromkeys(("open_ms", "idle_ms", "changed"), COUNT),
                    },
                },
            },
            "sizes": {"type": "object", "additionalProperties": COUNT, "description": "Bytes."},
            "error": TEXT,
        },
    },
    "Activities": {
        "type": "object",
        "properties": {
            "node": TEXT,
            "cluster": TEXT,
            "nodes": {"type": "object", "additionalProperties": _ref("Activity")},
        },
        "required": ["node", "cluster", "nodes"],
    },
    "Open": {
        "type": "object",
        "properties": {"node": {"type": "string"}, "command": {"type": "string"}},
        "required": ["node", "command"],
        "additionalProperties": False,
    },
    "Ended": {"type": "object", "properties": {"ended": TEXT}, "required": ["ended"]},
    "Ready": {
        "type": "object",
        "properties": {"ready": {"type": "boolean"}, "reasons": {"type": "array", "items": TEXT}},
        "required": ["ready", "reasons"],
    },
    "Alive": {"type": "object", "properties": {"alive": {"const": True}}, "required": ["alive"]},
}

MEANINGS = {
    "400": "The request is wrong, or the data forbids it. Nothing happened.",
    "401": "The token or the password is missing or wrong.",
    "405": "Another method is wanted.",
    "409": "Others were faster until the time was over. It did not happen; send it again.",
    "410": "What the feed would go on with was removed from the journal of this node. Nothing was skipped.",
    "413": "The request or its result is over a limit. Nothing happened.",
    "415": "The body is not declared as JSON.",
    "500": "The node has failed to answer.",
    "503": "No quorum, or the node is not caught up, or the time was over. It did not happen; ask again or elsewhere.",
    "504": "It cannot be told whether it happened. Send it again with the same id, which is in details.command.",
}


def _parameter(name: str, schema: Schema, text: str, place: str = "query") -> Schema:
    return {"name": name, "in": place, "required": False, "schema": schema, "description": text}


READING = [
    _parameter("read", {"enum": list(READ_LEVELS), "default": "session"}, "What a read sees."),
    _parameter("isolation", {"enum": list(ISOLATIONS), "default": "serializable"}, "What is certified."),
    _parameter(
        "timeout", {"type": "number", "minimum": 1, "maximum": 600, "default": 30}, "How long to try, in seconds."
    ),
    _parameter("token", {"type": "string", "pattern": "^[A-Za-z0-9_-]*$"}, "The token of an earlier answer."),
]
SHAPE = _parameter("rows", {"enum": list(SHAPES), "default": "arrays"}, "Each row as an array, or as an object.")
OPTIONS = [
    *READING,
    _parameter(
        "command",
        {"type": "string", "pattern": "^[A-Za-z0-9_.-]+$", "maxLength": COMMAND_CHARACTERS_MAX},
        "Id of the command: sent again under the same id, it is applied once at most, and answered as the first time.",
    ),
    _parameter(
        "Idempotency-Key",
        {"type": "string", "pattern": "^[A-Za-z0-9_.-]+$", "maxLength": COMMAND_CHARACTERS_MAX},
        "The same as command.",
        "header",
    ),
]


def _responses(schema: str, *errors: str, kind: str = "application/json") -> Schema:
    good = {"description": "Done.", "content": {kind: {"schema": TEXT if kind != "application/json" else _ref(schema)}}}
    failures = {
        code: {"description": MEANINGS[code], "content": {"application/json": {"schema": _ref("Error")}}}
        for code in ("400", "401", *errors)
    }
    return {"200": good, **failures}


LINES: Schema = {
    "description": "Lines of JSON: an object with columns, token and command; an array for each row, or with "
    "rows=objects an object with row; at last an object with rows, how many there were, and error if it broke off. "
    "Without it the result is not whole.",
    "content": {"application/x-ndjson": {"schema": TEXT}},
}


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation.

    Attributes:
        method: of HTTP.
        path: with the names of its parts in braces.
        handler: the name of the function that answers, and the operation's id.
        summary: what it does.
        responses: by status.
        parameters: options in the URL, headers and parts of the path.
        body: the schema of its body; None: it has none.
        free: it needs no login.
        runs: something happens each time it is asked, so that HEAD, which only wants to know, is not answered.
    """

    method: str
    path: str
    handler: str
    summary: str
    responses: Schema
    parameters: list[Schema] = field(default_factory=list)
    body: Schema | None = None
    free: bool = False
    runs: bool = False

    def described(self) -> Schema:
        """Return it as OpenAPI has it."""
        found: Schema = {"operationId": self.handler, "summary": self.summary, "responses": self.responses}
        if self.parameters:
            found["parameters"] = self.parameters
        if self.body is not None:
            found["requestBody"] = self.body
        if self.free:
            found["security"] = []
        return found


def _body(schema: Schema, *, required: bool = True) -> Schema:
    return {"required": required, "content": {"application/json": {"schema": schema}}}


ASKED = (
    {
        "name": "sql",
        "in": "query",
        "required": True,
        "schema": _ref("Sql"),
        "description": "One statement that only reads.",
    },
    _parameter(
        "params",
        {"type": "string", "contentMediaType": "application/json", "pattern": r"^(\[.*\]|\{.*\})$"},
        "Its parameters, as JSON: an array, or an object with their names.",
    ),
)
ERRORS = ("409", "413", "500", "503", "504")
NAMED = {
    "name": "name",
    "in": "path",
    "required": True,
    "schema": {"type": "string", "minLength": 1, "maxLength": COMMAND_CHARACTERS_MAX, "pattern": "^[A-Za-z0-9_]+$"},
    "description": "Of the command.",
}
ARGUMENTS = {"description": "The arguments, by position or by name.", "anyOf": [{"type": "array"}, {"type": "object"}]}
NUMBER = {"type": "integer", "minimum": 0, "maximum": 10**18 - 1}
VECTOR = {
    "type": "string",
    "pattern": "^([A-Z][A-Za-z0-9_]{0,15}:[0-9]{1,18}(,[A-Z][A-Za-z0-9_]{0,15}:[0-9]{1,18})*)?$",
}
FEED = [
    _parameter(
        "after",
        {"type": "string", "pattern": rf"^(({CLUSTER_PATTERN}:)?{PLACE_PATTERN}(\+{PLACE_PATTERN})*)?$"},
        "The cursor of a line, or of a copy; empty, as before the first transaction: the beginning.",
    ),
    _parameter("table", {"type": "string"}, "Only changes of this table; may be given several times."),
    _parameter("follow", {"enum": ["false", "true"]}, "true: go on until the reader leaves."),
    _parameter("wait", {"type": "number", "minimum": 0, "maximum": WAIT_S_MAX}, "Seconds to wait for the first one."),
    _parameter(
        "limit",
        {"type": "integer", "minimum": 0, "maximum": (1 << 31) - 1},
        "How many transactions at most; 0: all that there are.",
    ),
    _parameter(
        "hold",
        {"type": "string", "minLength": 1, "maxLength": 100},
        "Keep the journal after this cursor for a reader of this name.",
    ),
]
FED: Schema = {
    "description": "A line of JSON for each transaction, with the id of its command and, as joined, of those that "
    "share it, and with their users as user and joined_users; the last line has cursor and safe, or error. With "
    "Accept: text/event-stream, an event for each.",
    "content": {"application/x-ndjson": {"schema": TEXT}},
}
NOT_READY = {"description": "They should not.", "content": {"application/json": {"schema": _ref("Ready")}}}
DOCUMENT = {"description": "Done.", "content": {"application/json": {"schema": {"type": "object"}}}}


def _sql(path: str, handler: str, summary: str) -> Operation:
    """Return an operation that takes a list of statements."""
    answers = _responses("Answer", "415", *ERRORS)
    return Operation("POST", path, handler, summary, answers, [*OPTIONS, SHAPE], _body(_ref("Statements")), runs=True)


def _get(path: str, handler: str, summary: str, schema: str, *parameters: Schema, free: bool = False) -> Operation:
    return Operation("GET", path, handler, summary, _responses(schema), list(parameters), free=free)


OPERATIONS = (
    _sql("/db/execute", "execute", "Run statements one after the other, each a transaction of its own"),
    _sql("/db/query", "query", "Run statements that only read, all on the same state"),
    Operation(
        "GET",
        "/db/query",
        "ask",
        "Run one statement that only reads",
        _responses("Answer", *ERRORS),
        [*ASKED, *READING, SHAPE],
        runs=True,
    ),
    Operation(
        "POST",
        "/db/stream",
        "stream",
        "Run one statement that only reads, and get a line for each row, however many there are",
        {**_responses("", "415", *ERRORS), "200": LINES},
        [*OPTIONS, SHAPE],
        _body(_ref("Statements")),
        runs=True,
    ),
    Operation(
        "GET",
        "/db/stream",
        "ask_stream",
        "The same, with the statement in the URL",
        {**_responses("", *ERRORS), "200": LINES},
        [*ASKED, *READING, SHAPE],
        runs=True,
    ),
    Operation(
        "POST",
        "/db/command/{name}",
        "command",
        "Call a command of the application by name",
        _responses("Called", "415", *ERRORS),
        [NAMED, *OPTIONS],
        _body(ARGUMENTS, required=False),
        runs=True,
    ),
    _sql("/db/transaction", "transaction", "Run statements as one transaction: all or none"),
    _get("/status", "status", "What the node says about itself", "Status"),
    _get("/nodes", "nodes", "The members, as this node knows them", "Nodes"),
    _get(
        "/events",
        "events",
        "What this node lately said and heard about transactions; it takes note while somebody asks",
        "Events",
        _parameter("after", NUMBER, "Only what has a higher number."),
    ),
    Operation(
        "GET",
        "/changes",
        "changes",
        "The change feed: every committed transaction once, in the order of the cluster's clock, up to safe time",
        {**_responses("", "410", "413", "503"), "200": FED},
        FEED,
        runs=True,
    ),
    _get(
        "/cluster",
        "cluster",
        "Status and events of all members, for the dashboard",
        "Cluster",
        _parameter("after", VECTOR, "For each node, as in A:17,B:4: only events of a higher number."),
    ),
    _get(
        "/activity", "activity", "The last hour of all members, slow statements, open transactions, sizes", "Activities"
    ),
    Operation(
        "POST",
        "/transactions/end",
        "end_transaction",
        "End an open transaction, which then did not happen",
        _responses("Ended", "415", "500", "503"),
        body=_body(_ref("Open")),
        runs=True,
    ),
    Operation(
        "GET",
        "/readyz",
        "ready",
        "Whether requests should be sent here",
        {**_responses("Ready"), "503": NOT_READY},
    ),
    _get("/livez", "alive", "Whether the process answers; needs no login", "Alive", free=True),
    Operation("GET", "/metrics", "metrics", "Metrics for Prometheus", _responses("", kind="text/plain")),
    Operation("GET", "/openapi.json", "openapi", "This document", {**_responses("Alive"), "200": DOCUMENT}),
)
LOGINS = {"token": {"type": "http", "scheme": "bearer"}, "password": {"type": "http", "scheme": "basic"}}


def document() -> Schema:
    """Return the document."""
    paths: dict[str, Schema] = {}
    for one in OPERATIONS:
        paths.setdefault(one.path, {})[one.method.lower()] = one.described()
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "bedrockish",
            "version": __version__,
            "description": "SQL over HTTP at any node of a cluster, and what the node says about itself.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{"token": []}, {"password": []}, {}],
        "paths": paths,
        "components": {"schemas": SCHEMAS, "securitySchemes": LOGINS},
    }
