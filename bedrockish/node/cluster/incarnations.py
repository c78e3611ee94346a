"""A node's record of its peers' files, by which it refuses a voter that has lost a part of its file.

A voter's promises are in its file. With an empty or an older file it would break promises that it has forgotten, and
two conflicting transactions could both be committed. So each node remembers, durably, the random id of every peer's
file, the number of its batches, and the start of the process that wrote them. It refuses a voter that connects with
another file, or with a state of its file that lacks some of these batches. The votes of such a voter reach no peer, and
the refusal tells the voter the reason.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import cbor2

from bedrockish.node.cluster.starts import STARTS, SeenState, lacks, read_starts
from bedrockish_journal.model.membership import Membership

PREFIX = "seen:"
STEP = 100

# The codes with which a node refuses a peer because of the peer's file.
AMNESIA = "amnesia"  # a voter has another file; not certain, as the refusing node may lack a change of the members
REPLACED = "replaced"  # another file was admitted under the learner's name; not certain, for the same reason
OLDER_FILE = "older_file"  # a voter has an older state of the same file; certain, and final


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason for refusing a node: ``code`` for its program, ``reason`` for its operator.

    ``info`` has the ``store``, ``start`` and ``batches`` that were last seen of the refused node's file, so that its
    program can check them.
    """

    code: str
    reason: str
    info: Mapping[str, object] = field(default_factory=dict)


class Incarnations:
    """The facts about its peers' files that one node remembers.

    Args:
        kept: the values from before the restart: name -> value.
        keep: writes a value under a name; the value is durable before any output that depends on it leaves.
        step: a peer's number of batches is written again when it has grown by this number.
    """

    def __init__(self, kept: Mapping[str, Any], keep: Callable[[str, Any], None], *, step: int = STEP) -> None:
        self._keep = keep
        self._step = step
        self._seen: dict[str, SeenState] = {}
        self.refused: dict[str, str] = {}  # the refused nodes, each with the reason
        for name, value in kept.items():
            if isinstance(value, bytes):
                self._seen[name.removeprefix(PREFIX)] = read_seen(value)
        self._durable = dict(self._seen)

    @property
    def stores(self) -> dict[str, str]:
        """The ids of the peers' files: node -> id."""
        return {node: seen.store for node, seen in self._seen.items()}

    def judge(self, node: str, info: Mapping[str, object], membership: Membership) -> Refusal | None:
        """Check a peer's statements about its file when it connects; return a Refusal if it must be refused.

        A learner promises nothing, so it may connect with an older state of its file. This state then replaces the
        remembered one, so that the node is not refused when it has become a voter. But a learner is refused if the
        membership records another file: two processes with one name would take each other's links for ever, and the
        file that was admitted last is the valid one.
        """
        member, store, batches = membership.members.get(node), info.get("store"), info.get("batches")
        if not isinstance(store, str) or not isinstance(batches, int) or member is None:
            return None
        seen, starts = self._seen.get(node, SeenState()), read_starts(info.get(STARTS))
        known = member.store or seen.store
        code = reason = ""
        if member.voter and known and store != known:
            code = AMNESIA
            reason = f"{node} comes with another file (its id is {store}) than the one it voted with (id {known})"
        elif member.store and store != member.store:
            return Refusal(  # not noted in ``refused``: the member that has the name now is not refused
                REPLACED,
                f"another file (id {member.store}) was admitted as {node}, at {member.address}, and this one (id "
                f"{store}) is not a member any more: stop it, or have it join with an empty file under another name",
            )
        elif member.voter and store == seen.store and lacks(starts, batches, seen):
            code = OLDER_FILE
            reason = f"{node} comes with an older state of its file, without all of the {seen.batches} batches it had"
        if not code:
            self.refused.pop(node, None)
            if not member.voter:
                self._seen.pop(node, None)
            self._learn(node, SeenState(store, batches, starts[-1][0] if starts else b""))
            return None
        reason += (
            f", so it has forgotten promises; stop it, run 'bedrockish member replace URL {node} NEW', and "
            "then 'bedrockish join URL --voter' for the node NEW on an empty file"
        )
        self.refused[node] = reason
        return Refusal(code, reason, {"store": known, "start": seen.start, "batches": seen.batches})

    def learn(self, node: str, store: str, batches: int) -> None:
        """Record the id of a peer's file and its number of batches, which the connected peer has reported."""
        seen = self._seen.get(node, SeenState())
        self._learn(node, SeenState(store, batches, seen.start if store == seen.store else b""))

    def _learn(self, node: str, new: SeenState) -> None:
        seen = self._seen.get(node, SeenState())
        if new.store == seen.store and (new.batches < seen.batches or new == seen):
            return
        self._seen[node] = new
        durable = self._durable.get(node, SeenState(batches=-self._step))
        same = (new.store, new.start) == (durable.store, durable.start)
        if not same or new.batches >= durable.batches + self._step:
            self._write(node)

    def forget(self, membership: Membership) -> None:
        """Forget nodes that are no longer members."""
        for node in self._seen.keys() - membership.members.keys():
            del self._seen[node]
            self._durable.pop(node, None)
            self.refused.pop(node, None)
            self._keep(PREFIX + node, None)

    def save(self) -> None:
        """Write all remembered facts that are not in the file yet."""
        for node, seen in self._seen.items():
            if self._durable.get(node) != seen:
                self._write(node)

    def _write(self, node: str) -> None:
        seen = self._durable[node] = self._seen[node]
        self._keep(PREFIX + node, cbor2.dumps([seen.store, seen.batches, seen.start]))


def disbelieve(said: Mapping[str, object], own: Mapping[str, object], batches: int) -> str:
    """Return why a member's statement about our file cannot be true; empty if it can be true.

    Without this check an impostor could tell a member about a state of our file that never existed, and the member's
    refusal would stop us for ever.

    Args:
        said: the ``info`` of the member's refusal.
        own: the facts of this node's file in its HELLO.
        batches: the number of batches in the file now.
    """
    store, start, seen = said.get("store"), said.get("start"), said.get("batches")
    starts = read_starts(own.get(STARTS))
    if store != own.get("store") or not isinstance(start, bytes) or type(seen) is not int or not starts:
        return ""
    if start == starts[-1][0] and seen > batches:
        return f"it claims to have seen {seen} batches of this process, which has written {batches}"
    if not lacks(starts, batches, SeenState(str(store), seen, start)):
        return f"our file has all of the {seen} batches that this member has seen"
    return ""


def read_seen(kept: bytes) -> SeenState:
    """Decode the kept state of a peer's file; a state that an earlier release kept has no start."""
    return SeenState(*cbor2.loads(kept))
