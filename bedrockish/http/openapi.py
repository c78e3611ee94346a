"""The OpenAPI document, as data. A test lets a property-based tester hold a running node to it."""

from typing import Any

from bedrockish import __version__
from bedrockish.requests import ISOLATIONS, READ_LEVELS
from bedrockish.wire import COMMAND_CHARACTERS_MAX, STATEMENTS_MAX

Schema = dict[str, Any]

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
            "rows": {"type": "array", "items": {"type": "array", "items": _ref("Value")}},
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
            "command": {"type": "string", "description": "The id of the command."},
            "joined": {
                "type": "array",
                "items": TEXT,
                "description": "The ids of further commands that share the transaction.",
            },
        },
        "required": ["txid", "leader", "age_ms", "command", "joined"],
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


OPTIONS = [
    _parameter("read", {"enum": list(READ_LEVELS), "default": "session"}, "What a read sees."),
    _parameter("isolation", {"enum": list(ISOLATIONS), "default": "serializable"}, "What is certified."),
    _parameter(
        "timeout", {"type": "number", "minimum": 1, "maximum": 600, "default": 30}, "How long to try, in seconds."
    ),
    _parameter(
        "command",
        {"type": "string", "pattern": "^[A-Za-z0-9_.-]+$", "maxLength": COMMAND_CHARACTERS_MAX},
        "Id of the command: sent again under the same id, it is applied once at most, and answered as the first time.",
    ),
    _parameter("token", {"type": "string", "pattern": "^[A-Za-z0-9_-]*$"}, "The token of an earlier answer."),
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


def _stream_path() -> Schema:
    path = _sql_path("Run one statement that only reads, and get a line for each row, however many there are")
    path["post"]["responses"]["200"] = {
        "description": "Lines of JSON: an object with columns, token and command; an array for each row; at last an "
        "object with rows, how many there were, and error if it broke off. Without it the result is not whole.",
        "content": {"application/x-ndjson": {"schema": TEXT}},
    }
    return path


def _changes_path() -> Schema:
    number = {"type": "integer", "minimum": 0, "maximum": (1 << 31) - 1}
    path = _get_path(
        "The change feed: every committed transaction once, in the order of the cluster's clock, up to safe time",
        "",
        _parameter(
            "after", {"type": "string", "pattern": r"^[0-9]{1,18}\.[A-Za-z0-9_]{1,16}$"}, "The cursor of a line."
        ),
        _parameter("table", {"type": "string"}, "Only changes of this table; may be given several times."),
        _parameter("follow", {"enum": ["false"]}, "true: go on until the reader leaves."),
        _parameter("wait", {"type": "number", "minimum": 0, "maximum": 1}, "Seconds to wait for the first one."),
        _parameter("limit", number, "How many transactions at most; 0: all that there are."),
        _parameter(
            "hold",
            {"type": "string", "minLength": 1, "maxLength": 100},
            "Keep the journal after this cursor for a reader of this name.",
        ),
    )
    lines = {
        "description": "A line of JSON for each transaction, with the id of its command and, as joined, of those that "
        "share it; the last line has cursor and safe, or error. With Accept: text/event-stream, an event for each.",
        "content": {"application/x-ndjson": {"schema": TEXT}},
    }
    path["get"]["responses"] = {**_responses("", "410", "413", "503"), "200": lines}
    return path


def _sql_path(summary: str) -> Schema:
    return {
        "post": {
            "summary": summary,
            "parameters": OPTIONS,
            "requestBody": {"required": True, "content": {"application/json": {"schema": _ref("Statements")}}},
            "responses": _responses("Answer", "409", "413", "415", "500", "503", "504"),
        }
    }


def _command_path() -> Schema:
    path = _sql_path("Call a command of the application by name")
    name = {"type": "string", "minLength": 1, "maxLength": COMMAND_CHARACTERS_MAX, "pattern": "^[A-Za-z0-9_]+$"}
    parameter = {"name": "name", "in": "path", "required": True, "schema": name, "description": "Of the command."}
    path["post"]["parameters"] = [parameter, *OPTIONS]
    body = {"description": "The arguments, by position or by name.", "anyOf": [{"type": "array"}, {"type": "object"}]}
    path["post"]["requestBody"] = {"required": False, "content": {"application/json": {"schema": body}}}
    path["post"]["responses"]["200"]["content"]["application/json"]["schema"] = _ref("Called")
    return path


def _get_path(summary: str, schema: str, *parameters: Schema) -> Schema:
    return {"get": {"summary": summary, "parameters": list(parameters), "responses": _responses(schema)}}


LOGINS = {"token": {"type": "http", "scheme": "bearer"}, "password": {"type": "http", "scheme": "basic"}}


def document() -> Schema:
    """Return the document."""
    number = {"type": "integer", "minimum": 0, "maximum": 10**18 - 1}
    vector = {
        "type": "string",
        "pattern": "^([A-Z][A-Za-z0-9_]{0,15}:[0-9]{1,18}(,[A-Z][A-Za-z0-9_]{0,15}:[0-9]{1,18})*)?$",
    }
    ready = _get_path("Whether requests should be sent here", "Ready")
    ready["get"]["responses"]["503"] = {
        "description": "They should not.",
        "content": {"application/json": {"schema": _ref("Ready")}},
    }
    alive = _get_path("Whether the process answers; needs no token", "Alive")
    alive["get"]["security"] = []
    metrics = _get_path("Metrics for Prometheus", "")
    metrics["get"]["responses"] = _responses("", kind="text/plain")
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
        "paths": {
            "/db/execute": _sql_path("Run statements one after the other, each a transaction of its own"),
            "/db/query": _sql_path("Run statements that only read, all on the same state"),
            "/db/stream": _stream_path(),
            "/db/command/{name}": _command_path(),
            "/db/transaction": _sql_path("Run statements as one transaction: all or none"),
            "/status": _get_path("What the node says about itself", "Status"),
            "/nodes": _get_path("The members, as this node knows them", "Nodes"),
            "/events": _get_path(
                "What this node lately said and heard about transactions; it takes note while somebody asks",
                "Events",
                _parameter("after", number, "Only what has a higher number."),
            ),
            "/changes": _changes_path(),
            "/cluster": _get_path(
                "Status and events of all members, for the dashboard",
                "Cluster",
                _parameter("after", vector, "For each node, as in A:17,B:4: only events of a higher number."),
            ),
            "/readyz": ready,
            "/livez": alive,
            "/metrics": metrics,
            "/openapi.json": {
                "get": {
                    "summary": "This document",
                    "responses": {
                        "200": {
                            "description": "Done.",
                            "content": {"application/json": {"schema": {"type": "object"}}},
                        },
                        "401": _responses("Alive")["401"],
                    },
                }
            },
        },
        "components": {"schemas": SCHEMAS, "securitySchemes": LOGINS},
    }
