"""The laws of the journal (their names, what holds, and which files a check needs), and findings that break them.

A law has the same name in ``bedrockish journal verify``, in ``bedrockish audit`` on either engine, in the simulator,
and in docs/laws.md, which is generated from this table.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

FILE, OTHERS, OWN, TABLES = "one file", "files of several nodes", "the file of the timeline's own node", "the tables"
ANCHORS = "an [anchor](audit.md#anchors)"


FAULT, INFORMATION = "fault", "information"


@dataclass(frozen=True, slots=True)
class Finding:
    """A violation of a law."""

    check: str  # the name of the law
    node: str | None  # the node in whose file the law is broken; an audit names several, separated by commas, or none
    leader: str | None = None  # the timeline
    tick: int | None = None  # the place in the timeline
    txid: str | None = None  # the transaction, printed
    table: str | None = None  # the table, if the finding is about rows
    key: str | None = None  # the key of the row, printed; in a conflict, the key in hexadecimal
    text: str = ""  # the finding in a sentence
    level: str = FAULT  # ``INFORMATION`` for a state that honest journals can show as well


class Law(NamedTuple):
    """A law of the journal, and the files that a check of it needs."""

    name: str  # the name that findings use
    says: str  # the law as a sentence
    needs: str = FILE  # the files that a check needs
    simulated: bool = True  # whether the simulator checks the law in every world, too

    @property
    def brief(self) -> str:
        """The law, shortened to fit into a line of a report."""
        return re.split(r"[:;]|, and no other node|, and neither", self.says.rstrip("."))[0].replace("`", "").strip()


LAWS = (
    Law(
        "bytes",
        "Label and body can be decoded, the isolation is known, and the counts of changes of each command add up.",
    ),
    Law(
        "columns",
        "The columns of a row, `bedrockish_joined` and `bedrockish_packed` agree with the bytes.",
        simulated=False,
    ),
    Law("label", "The leader of an entry began its transaction, or the label names the node that did."),
    Law(
        "density", "The ticks of a timeline are 1, 2, 3, … from the beginning of the file to its last entry, each once."
    ),
    Law("hash", "An entry has the hash of its bytes: `hash = sha256(prev ‖ label ‖ body)`."),
    Law("link", "An entry continues the one before it; the first continues 32 zero bytes, or the mark of the removal."),
    Law("causality", "The base of an entry is in the same file, and was applied before it."),
    Law("clock", "An entry's clock is later than all clocks in its base."),
    Law("closure", "The base of an entry includes the bases of all entries in it."),
    Law(
        "quorum",
        "Enough voters of the membership in force at its base approved an entry, and no other node: "
        "max(n//2 + 1, (n + f)//2) of n, with f = (n - 1)//2, with its leader at its own tick; a majority held "
        "an adopted entry.",
    ),
    Law(
        "approval",
        "The tick of an approver fits the bases: it is not before the approver's last entry in the base, and before "
        "the first entry that the approver led with this entry in its base.",
    ),
    Law(
        "members",
        "Memberships can be read; each has the next version, makes one change, and retires only timelines that are "
        "complete and end there; the file has the id that they name for its node.",
    ),
    Law(
        "users",
        "A user had the right to the command, by the membership in the transaction's base: a removed user does "
        "nothing, and a reader changes nothing.",
        simulated=False,
    ),
    Law("txid", "A transaction is applied once; a repeat has the same content as the first."),
    Law(
        "command",
        "A command is applied once, alone or in a shared transaction, and not again after the removal of its entry.",
    ),
    Law(
        "void",
        "A file applies a transaction without its changes exactly if a membership has the operator's decision.",
        simulated=False,
    ),
    Law("safe", "The base of a transaction has every commit up to the safe time of its snapshot."),
    Law("schema", "A transaction ran on the version of the schema that was in force at its clock."),
    Law("rollbacks", "A leader gives up only its own transactions, and these are not committed."),
    Law("writes", "The write set of a transaction has the key of each changed row.", simulated=False),
    Law(
        "fork",
        "All files have the same entry at a place of a timeline, or the same hash as the mark of its removal.",
        OTHERS,
    ),
    Law("lost", "No file has more of a node's timeline than the node's own file.", OWN),
    Law(
        "conflict",
        "Of two concurrent transactions, neither writes a key that the other reads or writes, "
        "and neither changes the membership.",
        OTHERS,
    ),
    Law("tables", "The tables equal a replay of the journal.", TABLES, simulated=False),
    Law(
        "anchor",
        "The file agrees with the anchor: the last entry of each timeline, and the founders of the cluster.",
        ANCHORS,
        simulated=False,
    ),
)


def missing_files(nodes: Collection[str], leaders: Collection[str]) -> dict[str, str]:
    """Return the laws that need the files of other nodes than ``nodes``, each with these files.

    Args:
        leaders: the timelines in the files of ``nodes``.
    """
    others = "the files of other nodes"
    absent = ", ".join(sorted({*leaders} - {*nodes}))
    if len(nodes) < 2:
        return {"fork": others, "lost": f"the file of {absent}" if absent else others}
    return {"lost": f"the file of {absent}"} if absent else {}
