"""Responses as everything here gives them: JSON, never kept by anybody."""

from collections.abc import Mapping

from starlette.responses import Response

from bedrockish.errors import BedrockishError
from bedrockish.http.bodies import status_of, write_error, write_json

JSON = "application/json"


def json_reply(value: object, status: int = 200) -> Response:
    """Return a value as a response."""
    return raw_reply(write_json(value), status)


def raw_reply(body: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return JSON as a response."""
    return Response(body, status, {"cache-control": "no-store", **(headers or {})}, JSON)


def error_reply(
    error: BedrockishError, status: int | None = None, headers: Mapping[str, str] | None = None
) -> Response:
    """Return an error as a response; by default with the status that belongs to it."""
    status = status or status_of(error)
    later = {"retry-after": "1"} if status == 503 else {}
    return raw_reply(write_error(error), status, {**later, **(headers or {})})
