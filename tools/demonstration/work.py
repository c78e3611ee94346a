"""The demo's work: transfers between accounts by many clients at every node, some of them on a few hot rows.

Each transfer has a unique id, which is both its command id and the key of its row in the ledger. A client that loses an
answer sends the same command again until it gets one; the answers are recorded and compared with the database.
"""

import random
from dataclasses import dataclass, field

import trio

from bedrockish import open_client
from bedrockish.client.trio_client import Client
from bedrockish.errors import BedrockishError, ConstraintError, OutcomeUnknownError
from tools.cluster import LocalCluster

ACCOUNTS, HOT_ACCOUNTS, OPENING_BALANCE = 300, 4, 1_000
HOT_SHARE = 0.15
OWNERS = ("Alice", "Bob", "Camilla", "Diana", "Edgar", "Frida", "Gustav", "Hanna", "Ivan", "Judith")
SCHEMA = (
    "CREATE TABLE demo_account(id INTEGER PRIMARY KEY, owner TEXT NOT NULL,"
    " balance INTEGER NOT NULL CHECK (balance >= 0))",
    "CREATE TABLE demo_transfer(id TEXT PRIMARY KEY, payer INTEGER NOT NULL, payee INTEGER NOT NULL,"
    " amount INTEGER NOT NULL) WITHOUT ROWID",  # inserts would conflict over a hidden rowid
)
OPEN = "INSERT INTO demo_account(id, owner, balance) VALUES (?, ?, ?)"
TAKE = "UPDATE demo_account SET balance = balance - ? WHERE id = ?"
GIVE = "UPDATE demo_account SET balance = balance + ? WHERE id = ?"
NOTE = "INSERT INTO demo_transfer(id, payer, payee, amount) VALUES (?, ?, ?, ?)"


@dataclass(frozen=True, slots=True)
class Transfer:
    """A payment that a client asked for."""

    id: str
    payer: int
    payee: int
    amount: int


@dataclass
class Tally:
    """The answers that the clients got."""

    promised: dict[str, Transfer] = field(default_factory=dict)  # transfers that were acknowledged
    # Transfers that were refused because an account would have been overdrawn.
    refused: dict[str, Transfer] = field(default_factory=dict)
    unknown: dict[str, Transfer] = field(default_factory=dict)  # transfers whose outcome is not known
    retries: int = 0  # how often a node executed a transaction again after a conflict
    conflicts: int = 0  # how often a client got a conflict error and sent its command again
    lost: int = 0  # how often a client lost its answer or its node and sent its command again


async def open_accounts(client: Client, run: str) -> None:
    """Make the tables of the work and fill the accounts.

    Raises:
        BedrockishError: the tables cannot be made, for example because the loaded database has tables of these names.
    """
    for number, sql in enumerate(SCHEMA):
        await client.execute(sql, command=f"{run}-work-{number}")
    rows = [(OPEN, (i, OWNERS[i % len(OWNERS)], OPENING_BALANCE)) for i in range(1, ACCOUNTS + 1)]
    await client.transact(rows, command=f"{run}-accounts")


class Work:
    """The clients that transfer money, some at each node."""

    def __init__(self, cluster: LocalCluster, run: str, seed: int, writers_per_node: int) -> None:
        self.cluster = cluster
        self.run = run
        self.seed = seed
        self.writers_per_node = writers_per_node
        self.tally = Tally()
        self.is_over = False
        self.epochs = [0 for _ in cluster.nodes]

    async def write(self) -> None:
        """Run the writers until ``is_over``; each ends only when it knows the outcome of its last transfer."""
        async with trio.open_nursery() as nursery:
            for node in range(len(self.cluster.nodes)):
                for number in range(self.writers_per_node):
                    nursery.start_soon(self._writer, node, number)

    def come_home(self, node: int) -> None:
        """Have the writers of a node that was down connect to it again after their next transfer."""
        self.epochs[node] += 1

    async def _writer(self, node: int, number: int) -> None:
        luck = random.Random(f"{self.seed} {node} {number}")
        name, count = f"{self.run}-{self.cluster.nodes[node].name}{number}", 0
        pending: Transfer | None = None
        while not self.is_over or pending is not None:
            epoch = self.epochs[node]
            try:
                # The writer's own node comes first; the client uses the other nodes while that node is down.
                async with open_client(self.cluster.url(node, options="/?timeout=5&connect_timeout=2")) as client:
                    while epoch == self.epochs[node] and (not self.is_over or pending is not None):
                        if pending is None:
                            count += 1
                            pending = draw(f"{name}-{count}", luck)
                        if await self._transfer(client, pending):
                            pending = None
            except BedrockishError as error:
                if not error.retry:
                    raise
                self.tally.lost += 1
                await trio.sleep(0.2)

    async def _transfer(self, client: Client, transfer: Transfer) -> bool:
        """Ask for one transfer; return whether its outcome is known now."""
        tally = self.tally
        tally.unknown[transfer.id] = transfer
        try:
            results = await client.transact(
                [
                    (TAKE, (transfer.amount, transfer.payer)),
                    (GIVE, (transfer.amount, transfer.payee)),
                    (NOTE, (transfer.id, transfer.payer, transfer.payee, transfer.amount)),
                ],
                command=transfer.id,
            )
        except ConstraintError:
            tally.refused[transfer.id] = tally.unknown.pop(transfer.id)
            return True
        except OutcomeUnknownError:
            tally.lost += 1
            return False
        except BedrockishError as error:
            if not error.retry:
                raise
            tally.conflicts += error.code == "conflict"
            tally.lost += error.code != "conflict"
            return False
        tally.promised[transfer.id] = tally.unknown.pop(transfer.id)
        tally.retries += results[0].attempts - 1
        return True


def draw(id_: str, luck: random.Random) -> Transfer:
    """Draw a transfer: most between any two accounts, some among a few hot ones."""
    among = HOT_ACCOUNTS if luck.random() < HOT_SHARE else ACCOUNTS
    payer, payee = luck.sample(range(1, among + 1), 2)
    return Transfer(id_, payer, payee, luck.randint(1, 50))
