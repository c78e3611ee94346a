"""A short notation for histories, and good histories drawn from a serial order."""

import random
from collections import defaultdict

from tools.checker.history import Operation, Step


def steps(text: str) -> tuple[Step, ...]:
    """Read steps: ``a x 1`` appends, ``l x 1 2`` reads a list."""
    return tuple(_step(*part.split()) for part in text.split(";"))


def _step(kind: str, key: str, *values: str) -> Step:
    return Step("list", key, values=tuple(map(int, values))) if kind == "l" else Step("append", key, int(values[0]))


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
            before = state.get(key, ())
            if level == "update" and luck.random() < 0.6:
                value += 1
                state[key] = (*before, value)
                made.append(Step("append", key, value))
            else:
                made.append(Step("list", key, values=before))
        if any(step.kind == "append" for step in made):
            if happens:
                states.append(state)
        elif level == "update":
            level, outcome = "strict", "ok"
        if outcome == "ok":
            seen[client] = max(seen[client], len(states) - 1 if level != "session" else base)
        found.append(Operation(number, client, level, begin, end, outcome, tuple(made)))
    last = states[-1]
    reads = [Step("list", key, values=last.get(key, ())) for key in "xyzvw"]
    found.append(Operation(count + 1, "end", "final", now + 10, now + 11, "ok", tuple(reads)))
    return found
