"""``bedrockish upgrade check``: which node may be restarted next on this release, and whether now is the time."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import click
import trio

from bedrockish import __version__
from bedrockish.cli.safe_text import visible
from bedrockish.cli.url import UrlGroup, url_of
from bedrockish.client.trio_client import open_client
from bedrockish.errors import BedrockishError
from bedrockish_journal.model.levels import LEVEL

TIMEOUT_S = 5.0
EXPECTED = "upgrade_unfinished"  # a trouble that every cluster has during an upgrade


@dataclass(frozen=True, slots=True)
class MemberState:
    """The answer of a member; ``why_not``: its troubles, or why it could not be asked; empty if all is well."""

    name: str
    is_voter: bool
    version: str = ""
    level: int = 0
    cluster_level: int = 0
    why_not: str = ""


@dataclass(frozen=True, slots=True)
class UpgradeAdvice:
    """The advice on an upgrade: lines to print, and whether the upgrade can go on now."""

    lines: tuple[str, ...]
    is_fine: bool


def found_of(name: str, role: str, status: Mapping[str, Any]) -> MemberState:
    """Return the facts of a member's status. If its release reports no troubles, members that are down count as a
    trouble.
    """
    troubles = status.get("troubles")
    if isinstance(troubles, list):
        why_not = "; ".join(str(one["text"]) for one in troubles if one["code"] != EXPECTED)
    else:
        down = [other for other, node in status.get("nodes", {}).items() if not node["up"]]
        why_not = str(status.get("trouble") or "") or (f"it does not reach {', '.join(down)}" if down else "")
    level, cluster_level = int(status.get("level") or 0), int(status.get("cluster_level") or 0)
    return MemberState(name, role == "voter", str(status.get("version", "")), level, cluster_level, why_not)


def judge(members: list[MemberState], version: str, level: int) -> UpgradeAdvice:
    """Return the next step of an upgrade to a release. Learners go first: a learner answers writes with the voters'
    addresses, and a learner of an older release may not understand newer voters.
    """
    lines = [
        f"{one.name}  {'voter' if one.is_voter else 'learner'}  {one.version or 'unknown'}"
        + (f"  NOT WELL: {one.why_not}" if one.why_not else "")
        for one in members
    ]
    newer = [one.name for one in members if one.level > level]
    if newer:
        lines.append(f"{', '.join(newer)}: a newer release than this program, {version}; use the release of {newer[0]}")
        return UpgradeAdvice(tuple(lines), is_fine=False)
    left = [one for one in members if one.version != version]
    if any(one.why_not for one in members):
        what = (
            "restart no node now: all sound nodes are needed" if left else f"all run {version}, and something is wrong"
        )
        lines.append(f"{what}; 'bedrockish status' says what to do about it")
        return UpgradeAdvice(tuple(lines), is_fine=False)
    if left:
        following = min(left, key=lambda one: (one.is_voter, one.name))
        lines.append(
            f"next: end {following.name} with SIGTERM, start it with release {version}, and ask again; "
            f"{len(left)} of {len(members)} are left"
        )
        voters = sum(one.is_voter for one in members)
        if following.is_voter and voters < 3:
            lines.append(
                f"while it is down nothing is committed: there are {voters} voters, and all of them must agree"
            )
        if max(one.cluster_level for one in members) < level:
            lines.append("until all run it, each can go back to the release before")
        return UpgradeAdvice(tuple(lines), is_fine=True)
    if min(one.cluster_level for one in members) < level:
        lines.append(f"all run {version}; the cluster changes to its release level within a minute")
    else:
        lines.append(f"all run {version}, at release level {level}: there is no way back to a release of a lower level")
    return UpgradeAdvice(tuple(lines), is_fine=True)


@click.group(cls=UrlGroup)
def upgrade() -> None:
    """Take a cluster to another release, node after node."""


@upgrade.command()
def check(url: str) -> None:
    """Print which node may be restarted next on the release of this program, while clients go on.

    Run it with the new release, before each restart. Ends with 1 if no node should be restarted now.
    """
    verdict = judge(trio.run(_ask, url), __version__, LEVEL)
    for line in verdict.lines:
        click.echo(visible(line))
    if not verdict.is_fine:
        raise SystemExit(1)


async def _ask(url: str) -> list[MemberState]:
    async with open_client(url) as client:
        members = await client.nodes(timeout=TIMEOUT_S)
    found: dict[str, MemberState] = {}

    async def ask(name: str, member: Mapping[str, Any]) -> None:
        try:
            async with open_client(url_of(url, member)) as own:
                found[name] = found_of(name, member["role"], await own.status(timeout=TIMEOUT_S))
        except BedrockishError as error:
            found[name] = MemberState(name, member["role"] == "voter", why_not=error.message)

    async with trio.open_nursery() as nursery:
        for name, member in members.items():
            nursery.start_soon(ask, name, member)
    return [found[name] for name in sorted(found)]
