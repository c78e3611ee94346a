"""The laws of the journal, once: their names, and who looks at them.

A law has one name wherever it is held: in ``bedrockish journal verify``, in ``bedrockish audit`` on either engine, in
the simulator, and in docs/laws.md, which is written from this table.
"""

from typing import NamedTuple

FILE, OTHERS, OWN, TABLES = "one file", "files of several nodes", "the file of the timeline's own node", "the tables"


class Law(NamedTuple):
    """One law.

    Attributes:
        name: as findings have it.
        says: what holds, as a sentence.
        audit: the check of ``bedrockish audit`` that looks at it; empty: none does.
        needs: what must be at hand to look.
        walked: whether ``bedrockish journal verify`` looks at it.
        simulated: whether the simulator holds every world to it, too.
    """

    name: str
    says: str
    audit: str
    needs: str = FILE
    walked: bool = True
    simulated: bool = True


LAWS = (
    Law("bytes", "Label and body can be decoded, and the counts of what each command changed add up.", "readable"),
    Law("columns", "The columns of a row and `bedrockish_joined` say what the bytes say.", "readable", simulated=False),
    Law(
        "label",
        "A timeline holds what its leader began; of anything else it says from whom it was adopted.",
        "readable",
    ),
    Law("density", "A timeline counts 1, 2, 3, … from where the file begins, without a gap or a double.", "ticks"),
    Law("hash", "An entry is what was hashed: `hash = sha256(prev ‖ label ‖ body)`.", "chains"),
    Law(
        "link",
        "An entry continues the one before it; the first continues 32 zero bytes, or what was removed.",
        "chains",
    ),
    Law(
        "causality", "What an entry comes after (`after`) is in the same file, and was applied before it.", "causality"
    ),
    Law("clock", "An entry's clock is later than all clocks up to what it comes after.", "causality"),
    Law("closure", "What an entry comes after comes after nothing that the entry does not come after.", "causality"),
    Law(
        "quorum",
        "Enough voters of the membership in force at its base approved an entry, its leader at its own tick among "
        "them: max(n//2 + 1, (n + f)//2) of n, with f = (n - 1)//2; of an adopted one, a majority held it.",
        "quorums",
    ),
    Law(
        "approval",
        "Who approved an entry stood, by its own tick, not before what the entry has seen of it, and before the first "
        "that it led after it had seen the entry.",
        "",
    ),
    Law("members", "Memberships can be read, count up one by one, and retire whole timelines only.", "quorums"),
    Law(
        "txid",
        "A transaction is applied once; a repeat has the very content of what was applied before it.",
        "commands",
    ),
    Law("command", "A command is applied once, alone or sharing a transaction.", "commands"),
    Law("writes", "Each changed row is among the keys that the transaction says it wrote.", "", simulated=False),
    Law(
        "fork",
        "A place of a timeline is the same everywhere, also in a file that only says that it removed it.",
        "equal",
        OTHERS,
    ),
    Law("lost", "Nobody has more of a node's timeline than that node itself.", "", OWN),
    Law(
        "conflict",
        "Of two transactions of which neither comes after the other, neither writes what the other reads or writes, "
        "and neither changes the membership.",
        "conflicts",
        OTHERS,
        walked=False,
    ),
    Law("tables", "The tables are what a replay of the journal makes.", "database", TABLES, simulated=False),
)
BY_NAME = {law.name: law for law in LAWS}
