"""What a node remembers of the others' files, so that a voter that has lost its own cannot vote as if it had not.

A voter's promises are in its file. On an empty or an older file it would break them without knowing, and two
transactions that conflict could both be committed. So each node remembers, durably, the random id of everybody's file
and how many batches it had written, and turns a voter away that comes with another file, or with less. The votes of
such a node reach nobody, and it learns why.
"""

from collections.abc import Callable, Mapping
from typing import Any

import cbor2

from bedrockish.core.records import Membership

AMNESIA = "amnesia"  # the code of the refusal
PREFIX = "seen:"
STEP = 100


class Acquaintances:
    """The memory of one node.

    Args:
        kept: what was kept before: name -> value.
        keep: keeps a value under a name, durably before anything leaves that rests on it.
        step: batches by which what is kept may lag behind what is known.

    Attributes:
        refused: nodes that were turned away, and why.
    """

    def __init__(self, kept: Mapping[str, Any], keep: Callable[[str, Any], None], *, step: int = STEP) -> None:
        self._keep = keep
        self._step = step
        self._seen: dict[str, tuple[str, int]] = {}
        self._durable: dict[str, tuple[str, int]] = {}
        self.refused: dict[str, str] = {}
        for name, value in kept.items():
            if isinstance(value, bytes):
                store, batches = cbor2.loads(value)
                self._seen[name.removeprefix(PREFIX)] = self._durable[name.removeprefix(PREFIX)] = (store, batches)

    @property
    def stores(self) -> dict[str, str]:
        """The ids of the files that are known."""
        return {node: store for node, (store, _) in self._seen.items()}

    def judge(self, node: str, store: object, batches: object, membership: Membership) -> str:
        """Look at what a peer says of its file when it comes, and return why it must be turned away, or nothing.

        A learner is never turned away: it promises nothing.
        """
        member = membership.members.get(node)
        if not isinstance(store, str) or not isinstance(batches, int) or member is None:
            return ""
        seen_store, seen_batches = self._seen.get(node, ("", 0))
        known = member.store or seen_store
        reason = ""
        if member.voter and known and store != known:
            reason = f"{node} comes with another file (its id is {store}) than the one it voted with (id {known})"
        elif member.voter and store == seen_store and batches < seen_batches:
            reason = (
                f"{node} comes with an older state of its file: it had written {seen_batches} batches, now {batches}"
            )
        if reason:
            reason += (
                f", so it has forgotten what it promised; stop it, run 'bedrockish member replace URL {node} NEW', and "
                "then 'bedrockish join URL --voter' for the node NEW on an empty file"
            )
            self.refused[node] = reason
        else:
            self.refused.pop(node, None)
            self.learn(node, store, batches)
        return reason

    def learn(self, node: str, store: str, batches: int) -> None:
        """Remember a file, or that it has grown."""
        seen_store, seen_batches = self._seen.get(node, ("", 0))
        if store == seen_store and batches <= seen_batches:
            return
        self._seen[node] = (store, batches)
        durable_store, durable_batches = self._durable.get(node, ("", -self._step))
        if store != durable_store or batches >= durable_batches + self._step:
            self._write(node)

    def forget(self, membership: Membership) -> None:
        """Forget those who are no longer members."""
        for node in self._seen.keys() - membership.members.keys():
            del self._seen[node]
            self._durable.pop(node, None)
            self.refused.pop(node, None)
            self._keep(PREFIX + node, None)

    def save(self) -> None:
        """Keep everything as it is now."""
        for node, seen in self._seen.items():
            if self._durable.get(node) != seen:
                self._write(node)

    def _write(self, node: str) -> None:
        self._durable[node] = self._seen[node]
        self._keep(PREFIX + node, cbor2.dumps(list(self._seen[node])))
