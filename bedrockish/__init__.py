"""SQLite on several machines: every node accepts writes, and transactions stay serializable."""

from typing import TYPE_CHECKING, Any

from bedrockish.errors import (
    AuthenticationError,
    BedrockishError,
    ClientClosedError,
    CommandIdError,
    ConfigError,
    ConflictError,
    ConstraintError,
    DamagedError,
    DeadlineError,
    ForbiddenError,
    ForeignClusterError,
    ForgottenError,
    LearnerError,
    OutcomeUnknownError,
    ProtocolMismatchError,
    ResultLostError,
    SqlError,
    StatementTimeoutError,
    TemporaryLostError,
    TooLargeError,
    UnavailableError,
    UnsupportedError,
    UsageError,
)

if TYPE_CHECKING:
    from bedrockish.api.requests import Rows
    from bedrockish.client.blocking import Connection, connect
    from bedrockish.client.blocking_transaction import BlockingTransaction
    from bedrockish.client.cursor import RowStream
    from bedrockish.client.pool import ConnectionPool, Pool, connect_pool, open_pool
    from bedrockish.client.transaction import Transaction
    from bedrockish.client.trio_client import Client, open_client
    from bedrockish.embedded import node as node  # type checkers cannot follow ``__getattr__``

__version__ = "0.3.0.dev0"

__all__ = [
    "AuthenticationError",
    "BedrockishError",
    "BlockingTransaction",
    "Client",
    "ClientClosedError",
    "CommandIdError",
    "ConfigError",
    "ConflictError",
    "Connection",
    "ConnectionPool",
    "ConstraintError",
    "DamagedError",
    "DeadlineError",
    "ForbiddenError",
    "ForeignClusterError",
    "ForgottenError",
    "LearnerError",
    "OutcomeUnknownError",
    "Pool",
    "ProtocolMismatchError",
    "ResultLostError",
    "RowStream",
    "Rows",
    "SqlError",
    "StatementTimeoutError",
    "TemporaryLostError",
    "TooLargeError",
    "Transaction",
    "UnavailableError",
    "UnsupportedError",
    "UsageError",
    "connect",
    "connect_pool",
    "open_client",
    "open_pool",
]

# Imported on first use: the clients import trio, which the core and its tests must not need.
_HOMES = {
    "Client": "bedrockish.client.trio_client",
    "open_client": "bedrockish.client.trio_client",
    "Connection": "bedrockish.client.blocking",
    "connect": "bedrockish.client.blocking",
    "ConnectionPool": "bedrockish.client.pool",
    "Pool": "bedrockish.client.pool",
    "connect_pool": "bedrockish.client.pool",
    "open_pool": "bedrockish.client.pool",
    "Rows": "bedrockish.api.requests",
    "RowStream": "bedrockish.client.cursor",
    "Transaction": "bedrockish.client.transaction",
    "BlockingTransaction": "bedrockish.client.blocking_transaction",
}


def __getattr__(name: str) -> Any:
    if name == "node":  # the package of that name, which can be called
        from importlib import import_module

        return import_module("bedrockish.node")
    if name not in _HOMES:
        raise AttributeError(f"module 'bedrockish' has no attribute {name!r}")
    from importlib import import_module

    found = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return found
