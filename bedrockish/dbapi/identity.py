"""The id of the cluster that a URL or a path names: two different URLs may name the same cluster."""

from dataclasses import replace

from bedrockish.client.blocking import Connection, open_socket_client
from bedrockish.client.request_builder import Where, target_of
from bedrockish.errors import BedrockishError


def cluster_id(url: Where, seconds: float) -> str:
    """Return the cluster's id; empty if no node can be asked in the given time."""
    try:
        target = target_of(url)
        target = replace(target, connect_timeout_s=min(seconds, target.connect_timeout_s))
        with Connection(open_socket_client(target, None)) as connection:
            return connection.cluster_id
    except BedrockishError:
        return ""
