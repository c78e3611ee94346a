"""HTTP of a node that waits until its file can be written: the probes, the status, and a refusal with the reason."""

import json

from bedrockish.config.config import Config
from bedrockish.http.connections import serve_connections
from bedrockish.http.messages import JSON, NOT_KEPT, Reply, Request, Write
from bedrockish.http.serving import ServerCertificate, listen
from bedrockish.node.cluster.authentication import Credentials
from bedrockish.node.waiting import WaitingNode

PATIENCE_S = 10.0


async def serve_waiting(config: Config, credentials: Credentials, node: WaitingNode) -> None:
    """Answer HTTP with the reason for which the node waits, until cancelled.

    Raises:
        ConfigError: the address cannot be used.
    """
    assert config.http is not None
    listener = await listen(config.http)

    async def serve(request: Request, write: Write) -> None:
        status, kind, body = answer(request.path, node)
        await write(Reply(body, status, {"content-type": kind, **NOT_KEPT}))

    tls = ServerCertificate(config, credentials).context()
    await serve_connections(serve, listener, tls, PATIENCE_S, set(), leaves=lambda: True)


def answer(path: str, node: WaitingNode) -> tuple[int, str, bytes]:
    """Return the status, the type and the body of the answer at a path."""
    told, refusal = node.status(), node.refusal
    kind = JSON
    if path == "/livez":
        return 200, kind, _json({"alive": True})
    if path == "/status":
        return 200, kind, _json(told)
    if path == "/readyz":
        return 503, kind, _json({"ready": False, "reasons": [told["trouble"]], "troubles": told["troubles"]})
    if path == "/metrics":
        lines = "".join(f'bedrockish_trouble{{code="{one["code"]}"}} 1\n' for one in told["troubles"])
        return 200, "text/plain; version=0.0.4", f"# TYPE bedrockish_trouble gauge\n{lines}".encode()
    return 503, kind, _json({"code": refusal.code, "message": refusal.message, "details": {}})


def _json(value: object) -> bytes:
    return json.dumps(value).encode()
