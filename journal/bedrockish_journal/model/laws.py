"""The laws of the journal: their names, what holds, and which files a check needs.

A law has the same name in ``bedrockish journal verify``, in ``bedrockish audit`` on either engine, in the simulator,
and in docs/laws.md, which is generated from this table.
"""

import re
from typing import NamedTuple

FILE, OTHERS, OWN, TABLES = "one file", "files of several nodes", "the file of the timeline's own node", "the tables"
ANCHORS = "an [anchor](audit.md#anchors)"


class Law(NamedTuple):
    """A law.

    Attributes:
        name: the name that findings use.
        says: the law as a sentence.
        needs: the files that a check needs.
        simulated: whether the simulator checks the law in every world, too.
    """

    name: str
    says: str
    needs: str = FILE
    simulated: bool = True

    @property
    def brief(self) -> str:
        """The law, shortened to fit into a line of a report."""
        return re.split(r"[:;]|, and nobody else|, and neither", self.says.rstrip("."))[0].replace("`", "").strip()


LAWS = (
    Law(
        "bytes",
        "Label and body can be decoded, the isolation is known, and the counts of changes of each command add up.",
    ),
    Law(
        "columns",
        "The columns of a row, `bedrockish_joined` and `bedrockish_packed` say what the bytes say.",
        simulated=False,
    ),
    Law(
        "label",
        "A timeline holds what its leader began; of anything else it says from whom it was adopted.",
    ),
    Law(
        "density",
        "A timeline counts 1, 2, 3, … from where the file begins to a last entry, without a gap or a double.",
    ),
    Law("hash", "An entry is what was hashed: `hash = sha256(prev ‖ label ‖ body)`."),
    Law(
        "link",
        "An entry continues the one before it; the first continues 32 zero bytes, or what was removed.",
    ),
    Law("causality", "What an entry comes after is in the same file, and was applied before it."),
    Law("clock", "An entry's clock is later than all clocks up to what it comes after."),
    Law("closure", "What an entry comes after comes after nothing that the entry does not come after."),
    Law(
        "quorum",
        "Enough voters of the membership in force at its base approved an entry, and nobody else, its leader "
        "at its own tick among them: max(n//2 + 1, (n + f)//2) of n, with f = (n - 1)//2; of an adopted one, "
        "a majority held it.",
    ),
    Law(
        "approval",
        "An approver's own tick fits what it and the entry had seen: it is not before what the entry has seen of it, "
        "and before the first that it led after it had seen the entry.",
    ),
    Law(
        "members",
        "Memberships can be read, count up one by one, and retire whole timelines only, which end there; each makes "
        "one change of the one before it, and the file is the one that they bind its node to.",
    ),
    Law(
        "users",
        "A user had the right to the command, by the membership that the transaction had seen: a removed user does "
        "nothing, and a reader changes nothing.",
        simulated=False,
    ),
    Law(
        "txid",
        "A transaction is applied once; a repeat has the very content of what was applied before it.",
    ),
    Law("command", "A command is applied once, alone or sharing a transaction; no command is there that was removed."),
    Law(
        "void",
        "A file applies a transaction without its changes where a membership says that an operator decided so, "
        "and nowhere "
        "else.",
        simulated=False,
    ),
    Law("safe", "A transaction had seen every commit up to the safe time of its snapshot."),
    Law("schema", "A transaction ran on the version of the schema that was in force at its clock."),
    Law("rollbacks", "A transaction that a leader has given up is its own, and is not committed."),
    Law("writes", "Each changed row is among the keys that the transaction says it wrote.", simulated=False),
    Law(
        "fork",
        "A place of a timeline is the same everywhere, also in a file that only says that it removed it.",
        OTHERS,
    ),
    Law("lost", "Nobody has more of a node's timeline than that node itself.", OWN),
    Law(
        "conflict",
        "Of two transactions of which neither comes after the other, neither writes what the other reads or writes, "
        "and neither changes the membership.",
        OTHERS,
    ),
    Law("tables", "The tables are what a replay of the journal makes.", TABLES, simulated=False),
    Law(
        "anchor",
        "What an anchor has is there, and is the same: the last entry of each timeline, and who founded the cluster.",
        ANCHORS,
        simulated=False,
    ),
)
BY_NAME = {law.name: law for law in LAWS}
