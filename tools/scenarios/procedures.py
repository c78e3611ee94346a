"""What the nodes of ``tools/bench beside`` are given to do: a billing run."""

import time

from bedrockish.commands import Transaction, command


@command
def billing(tx: Transaction, seconds: float) -> int:
    """Read everything, again and again, and in the end write one row."""
    until, rounds = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        total = sum(value for (value,) in tx.execute("SELECT value FROM bench_row"))
        rounds += 1
        assert total >= 0
    tx.execute("INSERT INTO bench_bill(at, rounds) VALUES (?, ?)", (tx.now, rounds))
    return rounds
