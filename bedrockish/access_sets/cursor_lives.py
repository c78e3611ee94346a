"""Splits cursors that are opened several times on different tables or indexes: each opening gets a number of its own.

SQLite uses one cursor for all terms of an OR, and opens it on the index of each term in turn. At each instruction the
cursor is on one index; the paths through the program show on which.
"""

from collections.abc import Set

from bedrockish.access_sets.effort import EVERY, Check, checked, unlimited
from bedrockish.access_sets.opcodes import CURSORS, ENDS, OPENS, OPENS_PRIVATE, RESUMES, Op, may_jump

_FIRST = 1 << 16  # the first new number of a cursor, above all cursor numbers of SQLite


def split_cursors(program: list[Op], check: Check = unlimited) -> list[Op]:
    """Return the program with a separate number for each opening of a cursor.

    A cursor is left unchanged if an instruction that uses it can be reached from different openings.
    """
    opened: dict[int, list[int]] = {}
    used: dict[int, set[int]] = {}
    for op in checked(program, check):
        if op.name in CURSORS:
            used.setdefault(op.p1, set()).add(op.address)
            if op.name in OPENS or op.name in OPENS_PRIVATE:
                opened.setdefault(op.p1, []).append(op.address)
    several = {cursor for cursor, opens in opened.items() if len(opens) > 1}
    several -= {cursor for op in program for cursor in other_cursors(op)}
    if not several:
        return program
    # A subroutine that does not open the cursor is skipped: its caller continues with the cursor unchanged.
    paths = _Paths(program, check)
    called = paths.reached([op.p2 for op in program if op.name == "Gosub"], returns=False)
    split = list(program)
    number = _FIRST
    for cursor in sorted(several):
        opens = set(opened[cursor])
        returns = not called.isdisjoint(opens)
        lives = [paths.uses(used[cursor], opens, start, returns=returns) for start in opened[cursor]]
        if sum(map(len, lives)) != len(set[int]().union(*lives)) or sum(map(len, lives)) != len(used[cursor]):
            continue
        for life in lives:
            for address in life:
                split[address] = split[address]._replace(p1=number)
            number += 1
    return split


class _Paths:
    """Finds the instructions that a program can reach from one of its instructions."""

    def __init__(self, program: list[Op], check: Check) -> None:
        self._program, self._check = program, check
        # The addresses at which a subroutine or coroutine may continue: after each of its callers, and where a
        # coroutine has no more rows.
        found: dict[int, None] = {}
        for op in checked(program, check):
            if op.name in RESUMES or op.name == "Gosub":
                found[op.address + 1] = None
            if op.name == "InitCoroutine":
                found[op.p3] = None
            if op.name == "Yield":
                found[op.p2] = None
        self._resumed = list(found)

    def uses(self, used: set[int], opens: set[int], start: int, *, returns: bool) -> set[int]:
        """Return the addresses of the instructions that may use a cursor while it is open from ``start`` on.

        ``opens`` has the addresses of all openings of the cursor, and ``used`` those of all its uses.
        """
        ahead = self._following(self._program[start])
        if self._resumes(self._program[start], returns=returns):
            ahead += self._resumed
        reached = self.reached(ahead, returns=returns, ends=opens)
        return {start} | ((reached & used) - opens)

    def reached(self, ahead: list[int], *, returns: bool, ends: Set[int] = frozenset()) -> set[int]:
        """Return at least the addresses that the program can reach from ``ahead`` without passing one of ``ends``.

        With ``returns``, a Return may continue after any call; without, each call simply continues after itself.
        """
        seen: set[int] = set()
        has_resumed = False
        while ahead:
            if len(seen) % EVERY == EVERY - 1:
                self._check()
            address = ahead.pop()
            if address in seen or address >= len(self._program):
                continue
            seen.add(address)
            if address in ends:
                continue
            op = self._program[address]
            ahead += self._following(op)
            if not has_resumed and self._resumes(op, returns=returns):
                has_resumed = True
                ahead += self._resumed
        return seen

    @staticmethod
    def _resumes(op: Op, *, returns: bool) -> bool:
        return op.name in RESUMES and (op.name != "Return" or returns)

    @staticmethod
    def _following(op: Op) -> list[int]:
        """Return the addresses at which the program may continue after an instruction, except those of ``_resumed``."""
        if op.name == "Return":
            return [op.address + 1] if op.p3 else []  # with P3, a Return outside a call of its subroutine does nothing
        found = [op.p1, op.p3] if op.name == "Jump" else []
        if may_jump(op) and op.p2:
            found.append(op.p2)
        if op.name not in ENDS:
            found.append(op.address + 1)
        return found


def other_cursors(op: Op) -> tuple[int, ...]:
    """Return the cursors that an instruction names in an operand other than P1, whose numbers are not replaced."""
    if op.name in ("DeferredSeek", "SorterData"):
        return (op.p3,)
    return (op.p2,) if op.name in ("OpenDup", "RowCell") else ()
