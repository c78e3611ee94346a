"""HTTP of a node that waits until its file can be written: the probes, the status, and a refusal with the reason."""

from bedrockish.config.config import Config
from bedrockish.http.connections import serve_connections
from bedrockish.http.messages import NOT_KEPT, HttpReply, HttpRequest, Write, error_reply, json_reply
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

    async def serve(request: HttpRequest, write: Write) -> None:
        await write(answer(request.path, node))

    tls = ServerCertificate(config, credentials).context()
    await serve_connections(serve, listener, tls, PATIENCE_S, set(), leaves=lambda: True)


def answer(path: str, node: WaitingNode) -> HttpReply:
    """Return the reply to a request for a path."""
    told = node.status()
    if path == "/livez":
        return json_reply({"alive": True})
    if path == "/status":
        return json_reply(told)
    if path == "/readyz":
        return json_reply({"ready": False, "reasons": [told["trouble"]], "troubles": told["troubles"]}, 503)
    if path == "/metrics":
        lines = "".join(f'bedrockish_trouble{{code="{one["code"]}"}} 1\n' for one in told["troubles"])
        body = f"# TYPE bedrockish_trouble gauge\n{lines}".encode()
        return HttpReply(body, 200, {"content-type": "text/plain; version=0.0.4", **NOT_KEPT})
    return error_reply(node.refusal, 503)
