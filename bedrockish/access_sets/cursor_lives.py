"""Splits cursors that are opened again on another table or index: each of their lives gets a number of its own.

SQLite gives the terms of an OR one cursor, which it opens on the index of each term in turn. The cursor's position is
in one index at a time, and that index follows from the paths of the program.
"""

from collections.abc import Set

from bedrockish.access_sets.effort import EVERY, Check, checked, unlimited
from bedrockish.access_sets.opcodes import CURSORS, ENDS, OPENS, OPENS_PRIVATE, RESUMES, Op, may_jump

_FIRST = 1 << 16  # above all numbers of cursors that SQLite gives


def lives_apart(program: list[Op], check: Check = unlimited) -> list[Op]:
    """Return a program in which each cursor is opened in one place only, as far as the ways through the program tell.

    A cursor stays as it is if there is an instruction that its ways from different places lead to.
    """
    opened: dict[int, list[int]] = {}
    used: dict[int, set[int]] = {}
    for op in checked(program, check):
        if op.name in CURSORS:
            used.setdefault(op.p1, set()).add(op.address)
            if op.name in OPENS or op.name in OPENS_PRIVATE:
                opened.setdefault(op.p1, []).append(op.address)
    several = {cursor for cursor, opens in opened.items() if len(opens) > 1}
    several -= {cursor for op in program for cursor in named_otherwise(op)}
    if not several:
        return program
    # A subroutine that leaves the cursor alone is skipped: its caller goes on with the cursor unchanged.
    ways = _Ways(program, check)
    called = ways.reached([op.p2 for op in program if op.name == "Gosub"], returns=False)
    apart = list(program)
    number = _FIRST
    for cursor in sorted(several):
        opens = set(opened[cursor])
        returns = not called.isdisjoint(opens)
        lives = [ways.uses(used[cursor], opens, start, returns=returns) for start in opened[cursor]]
        if sum(map(len, lives)) != len(set[int]().union(*lives)) or sum(map(len, lives)) != len(used[cursor]):
            continue
        for life in lives:
            for address in life:
                apart[address] = apart[address]._replace(p1=number)
            number += 1
    return apart


class _Ways:
    """The ways through a program."""

    def __init__(self, program: list[Op], check: Check) -> None:
        self._program, self._check = program, check
        # Where a subroutine or a coroutine may go on: behind its callers, and where there are no more rows.
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
        """Return the addresses of the instructions that may use a cursor as it is opened at one of ``opens``."""
        ahead = self._following(self._program[start])
        if self._resumes(self._program[start], returns=returns):
            ahead += self._resumed
        reached = self.reached(ahead, returns=returns, ends=opens)
        return {start} | ((reached & used) - opens)

    def reached(self, ahead: list[int], *, returns: bool, ends: Set[int] = frozenset()) -> set[int]:
        """Return the addresses to which the program may come from some, not through ``ends``, and perhaps some more.

        With ``returns``, a subroutine goes on behind all its callers, and else a call goes on behind itself.
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
        """Return the addresses at which the program may go on after an instruction, but for those of ``_resumed``."""
        if op.name == "Return":
            return [op.address + 1] if op.p3 else []  # it does nothing where no call led to the subroutine
        found = [op.p1, op.p3] if op.name == "Jump" else []
        if may_jump(op) and op.p2:
            found.append(op.p2)
        if op.name not in ENDS:
            found.append(op.address + 1)
        return found


def named_otherwise(op: Op) -> tuple[int, ...]:
    """Return the cursors that an instruction names elsewhere than first, where a number would not be changed."""
    if op.name in ("DeferredSeek", "SorterData"):
        return (op.p3,)
    return (op.p2,) if op.name in ("OpenDup", "RowCell") else ()
