"""Whether a node is of use: the reasons why not, for ``/readyz``. Pure: they come out of the node's status."""

from collections.abc import Mapping
from typing import Any

BEHIND_MAX = 200  # commits that others have and this node has not: under load there are always some
SILENT_MS_MAX = 3_000


def reasons(status: Mapping[str, Any]) -> list[str]:
    """Return why the node should be sent no requests; nothing if it should."""
    found = []
    if status["trouble"]:
        found.append(str(status["trouble"]))
    nodes: Mapping[str, Mapping[str, Any]] = status["nodes"]
    reached = {name for name, node in nodes.items() if reaches(node)}
    voters = sum(1 for name in reached if nodes[name]["role"] == "voter")
    if voters < status["quorum"]:
        in_reach = "1 voter is" if voters == 1 else f"{voters} voters are"
        found.append(f"{in_reach} in reach, and {status['quorum']} are needed to commit")
    applied: Mapping[str, int] = status["applied"]
    newest: dict[str, int] = {}
    for name in reached:
        for leader, tick in nodes[name]["applied"].items():
            newest[leader] = max(tick, newest.get(leader, 0))
    behind = sum(max(0, tick - applied.get(leader, 0)) for leader, tick in newest.items())
    if behind > BEHIND_MAX:
        found.append(f"{behind} commits are still to be fetched")
    return found


def reaches(node: Mapping[str, Any]) -> bool:
    """Whether a member can be reached, itself included."""
    return bool(node["up"]) and node["silent_ms"] < SILENT_MS_MAX
