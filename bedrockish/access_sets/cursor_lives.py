"""Cursors that are opened anew on another table or index, taken apart: each of their lives gets a number of its own.

SQLite gives the terms of an OR one cursor, which it opens on the index of each term in turn. What the cursor finds is
of one index at a time, and which one that is follows from the ways that the program can go.
"""

from collections.abc import Iterator, Set

from bedrockish.access_sets.opcodes import CURSORS, ENDS, OPENS, OPENS_PRIVATE, RESUMES, Op, may_jump

_FIRST = 1 << 16  # above all numbers of cursors that SQLite gives


def lives_apart(program: list[Op]) -> list[Op]:
    """Return a program in which each cursor is opened in one place only, as far as the ways through the program tell.

    A cursor stays as it is if there is an instruction that its ways from different places lead to.
    """
    opened: dict[int, list[int]] = {}
    used: dict[int, set[int]] = {}
    for op in program:
        if op.name in CURSORS:
            used.setdefault(op.p1, set()).add(op.address)
            if op.name in OPENS or op.name in OPENS_PRIVATE:
                opened.setdefault(op.p1, []).append(op.address)
    several = {cursor for cursor, opens in opened.items() if len(opens) > 1}
    several -= {cursor for op in program for cursor in named_otherwise(op)}
    if not several:
        return program
    # A subroutine that leaves the cursor alone is passed by: what called it goes on with the cursor as it was.
    called = _reached(program, [op.p2 for op in program if op.name == "Gosub"], returns=False)
    apart = list(program)
    number = _FIRST
    for cursor in sorted(several):
        opens = set(opened[cursor])
        returns = not called.isdisjoint(opens)
        lives = [_uses(program, used[cursor], opens, start, returns=returns) for start in opened[cursor]]
        if sum(map(len, lives)) != len(set[int]().union(*lives)) or sum(map(len, lives)) != len(used[cursor]):
            continue
        for life in lives:
            for address in life:
                apart[address] = apart[address]._replace(p1=number)
            number += 1
    return apart


def _uses(program: list[Op], used: set[int], opens: set[int], start: int, *, returns: bool) -> set[int]:
    """Return the addresses of the instructions that may use a cursor as it is opened at one of ``opens``."""
    reached = _reached(program, list(_ways(program, program[start], returns=returns)), returns=returns, ends=opens)
    return {start} | ((reached & used) - opens)


def _reached(program: list[Op], ahead: list[int], *, returns: bool, ends: Set[int] = frozenset()) -> set[int]:
    """Return the addresses to which a program may come from some, not through ``ends``."""
    seen: set[int] = set()
    while ahead:
        address = ahead.pop()
        if address not in seen and address < len(program):
            seen.add(address)
            ahead += _ways(program, program[address], returns=returns) if address not in ends else ()
    return seen


def _ways(program: list[Op], op: Op, *, returns: bool) -> Iterator[int]:
    """Yield every address at which a program may go on after an instruction, and perhaps some more.

    With ``returns``, a subroutine goes on behind whatever called it, and else the call goes on behind itself.
    """
    if op.name in RESUMES and (op.name != "Return" or returns):
        yield from (one.address + 1 for one in program if one.name in RESUMES or one.name == "Gosub")
        yield from (one.p3 for one in program if one.name == "InitCoroutine")
        yield from (one.p2 for one in program if one.name == "Yield")  # where it goes on when there are no more rows
    if op.name == "Jump":
        yield from (op.p1, op.p3)
    if op.name == "Return":
        if op.p3:  # it does nothing where the subroutine was come to without a call
            yield op.address + 1
        return
    if may_jump(op) and op.p2:
        yield op.p2
    if op.name not in ENDS:
        yield op.address + 1


def named_otherwise(op: Op) -> tuple[int, ...]:
    """Return the cursors that an instruction names elsewhere than first, where a number would not be changed."""
    if op.name in ("DeferredSeek", "SorterData"):
        return (op.p3,)
    return (op.p2,) if op.name in ("OpenDup", "RowCell") else ()
