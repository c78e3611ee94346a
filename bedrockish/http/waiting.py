"""HTTP of a node that waits until its file can be written: the probes, the status, and a refusal with the reason."""

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Protocol

from bedrockish.config.config import Config
from bedrockish.engine.sqlite.limits import Memory
from bedrockish.errors import UnavailableError
from bedrockish.http.connections import serve_connections
from bedrockish.http.serving import listen, settings_of
from bedrockish.node.admin.watching import files_max
from bedrockish.node.cluster.authentication import Credentials

Message = MutableMapping[str, Any]
PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><meta http-equiv="refresh" content="5">
<title>bedrockish</title><h1>This node waits</h1><p>{}</p>"""


class Waits(Protocol):
    """A node that waits; see ``bedrockish.node.waiting.WaitingNode``."""

    @property
    def refusal(self) -> UnavailableError:
        """The error for every request."""

    def status(self) -> dict[str, Any]:
        """Return the status of the node."""


async def serve_waiting(config: Config, credentials: Credentials, node: Waits) -> None:
    """Answer HTTP with the reason for which the node waits, until cancelled.

    Raises:
        ConfigError: the address cannot be used.
    """
    assert config.http is not None
    listener = await listen(config.http)
    settings = settings_of(config, credentials)

    async def app(scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Any]) -> None:
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1013})
        elif scope["type"] == "http":
            status, kind, body = answer(str(scope["path"]), node)
            headers = [(b"content-type", kind), (b"cache-control", b"no-store"), (b"connection", b"close")]
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await send({"type": "http.response.body", "body": body})

    tls = settings.create_ssl_context()
    await serve_connections(app, settings, listener, tls, 10.0, set(), files_max(), Memory())  # type: ignore[arg-type]


def answer(path: str, node: Waits) -> tuple[int, bytes, bytes]:
    """Return the status, the type and the body of the answer at a path."""
    told, refusal = node.status(), node.refusal
    kind = b"application/json"
    if path == "/livez":
        return 200, kind, _json({"alive": True})
    if path == "/status":
        return 200, kind, _json(told)
    if path == "/readyz":
        return 503, kind, _json({"ready": False, "reasons": [told["trouble"]], "troubles": told["troubles"]})
    if path == "/metrics":
        lines = "".join(f'bedrockish_trouble{{code="{one["code"]}"}} 1\n' for one in told["troubles"])
        return 200, b"text/plain; version=0.0.4", f"# TYPE bedrockish_trouble gauge\n{lines}".encode()
    if path == "/":
        text = refusal.message.replace("&", "&amp;").replace("<", "&lt;")
        return 503, b"text/html", PAGE.format(text).encode()
    return 503, kind, _json({"code": refusal.code, "message": refusal.message, "details": {}})


def _json(value: object) -> bytes:
    return json.dumps(value).encode()
