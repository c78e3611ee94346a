"""Anchors of files without running nodes, made and checked as the commands do."""

import time
from collections.abc import Sequence
from pathlib import Path

from bedrockish_journal.model.anchor import FIRST, Anchor, AnchorStatement
from bedrockish_journal.model.membership import read_membership
from bedrockish_journal.storage.store import heads, open_readonly
from bedrockish_journal.verify.anchored import Anchored, check_anchors, founders_hash

_FOUNDERS = "SELECT value FROM bedrockish_meta WHERE key = 'bootstrap'"


def anchored(paths: Sequence[Path]) -> list[Anchor]:
    """Return one anchor, with the furthest that any of the files has of each timeline."""
    ends: dict[str, tuple[int, str]] = {}
    for path in paths:
        db = open_readonly(path)
        for leader, (tick, end) in heads(db).items():
            ends[leader] = max(ends.get(leader, (0, "")), (tick, end.hex()))
        db.close()
    db = open_readonly(paths[0])
    founders, digest = read_membership(db.execute(_FOUNDERS).get), founders_hash(db)
    db.close()
    said = AnchorStatement(
        "c", 1, FIRST, time.time_ns() // 1_000_000, 0, digest, founders.version, tuple(founders.voters), ends
    )
    return [Anchor(said.text(), said)]


def hold(paths: Sequence[Path], anchors: Sequence[Anchor]) -> Anchored:
    """Check files against anchors."""
    files = {path.stem: open_readonly(path) for path in paths}
    try:
        return check_anchors(files, anchors)
    finally:
        for db in files.values():
            db.close()
