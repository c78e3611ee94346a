"""A short notation for histories, and good histories drawn from a serial order."""

import random
from collections import defaultdict

from tools.checker.history import Operation, Step


def steps(text: str) -> tuple[Step, ...]:
    """Read steps: ``a x 1`` appends, ``l x 1 2`` reads a list, ``w r 1`` writes a register, ``r r 1`` reads it.

    A register's value may carry its version, as in ``r r 1@3``; ``-`` is the value of one that was never written.
    """
    return tuple(_step(*part.split()) for part in text.split(";"))


def _step(kind: str, key: str, *values: str) -> Step:
    if kind == "l":
        return Step("list", key, values=tuple(map(int, values)))
    value, _, version = values[0].partition("@")
    name = {"a": "append", "w": "write", "r": "read"}[kind]
    return Step(name, key, None if value == "-" else int(value), version=int(version) if version else None)


def history(text: str) -> list[Operation]:
    """Read a history: lines of ``client begin-end level[!|?] : steps``; ``!`` marks a failure, ``?`` an unknown end."""
    found = []
    for number, line in enumerate(filter(str.strip, text.splitlines()), 1):
        head, _, rest = line.partition(":")
        client, times, level = head.split()
        begin, _, end = times.partition("-")
        outcome = {"!": "fail", "?": "unknown"}.get(level[-1], "ok")
        found.append(
            Operation(number, client, level.rstrip("!?"), float(begin), float(end), outcome, steps(rest.strip()))
        )
    return found


def serial_history(seed: int, count: int = 60) -> list[Operation]:
    """Draw a correct history.

    Each operation takes effect at one moment between its two times; session reads may return older states, but not
    older than the reads and writes of their session; operations of unknown outcome do or do not happen, as late as they
    like.
    """
    luck = random.Random(seed)
    states: list[dict[str, tuple[int, ...]]] = [{}]
    seen: dict[str, int] = defaultdict(int)  # client -> newest state it knows
    free: dict[str, float] = defaultdict(float)  # client -> when its last operation was over
    found: list[Operation] = []
    value = 0
    now = 0.0
    for number in range(1, count + 1):
        now += luck.random()  # the moment of effect
        client = luck.choice([name for name in "pqrst" if free[name] < now] or [f"n{number}"])
        begin = max(free[client], now - luck.random() * 2)
        end = free[client] = now + luck.random() * 2
        level = luck.choice(["update", "update", "update", "strict", "session"])
        outcome = luck.choices(["ok", "fail", "unknown"], [10, 1, 1])[0] if level == "update" else "ok"
        happens = outcome == "ok" or (outcome == "unknown" and luck.random() < 0.5)
        base = luck.randint(seen[client], len(states) - 1) if level == "session" else len(states) - 1
        state = dict(states[base])
        made: list[Step] = []
        for _ in range(luck.randint(1, 4)):
            key = luck.choice(["x", "y", "z", "v", "w"])
            is_list, writes = key in "xyz", level == "update" and luck.random() < 0.6
            before = state.get(key, ())
            if writes:
                value += 1
                state[key] = (*before, value)
                made.append(Step("append" if is_list else "write", key, value))
            elif is_list:
                made.append(Step("list", key, values=before))
            else:
                made.append(Step("read", key, before[-1] if before else None, version=len(before) or None))
        if any(step.kind in ("append", "write") for step in made):
            if happens:
                states.append(state)
        elif level == "update":
            level, outcome = "strict", "ok"
        if outcome == "ok":
            seen[client] = max(seen[client], len(states) - 1 if level != "session" else base)
        found.append(Operation(number, client, level, begin, end, outcome, tuple(made)))
    last = states[-1]
    reads = [Step("list", key, values=last.get(key, ())) for key in "xyz"]
    found.append(Operation(count + 1, "end", "final", now + 10, now + 11, "ok", tuple(reads)))
    return found
