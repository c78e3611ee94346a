"""The SQLAlchemy dialect: ``create_engine("bedrockish://[host1:7373,host2:7373]/")``. See ``dialect``."""

import sqlalchemy
from sqlalchemy.dialects import registry

if sqlalchemy.__version__.startswith("1."):
    raise ImportError(
        f"SQLAlchemy {sqlalchemy.__version__} is installed, and the dialect of bedrockish needs 2.0 or newer; a "
        "program that needs an older one can use its URL for SQLite, see docs/unchanged-programs.md"
    )

from bedrockish.sqlalchemy.again import run_transaction, run_transaction_async
from bedrockish.sqlalchemy.dialect import BedrockishDialect
from bedrockish.sqlalchemy.urls import make_url

# If the package is imported without being installed, it has no entry points that register the dialect.
registry.register("bedrockish.asyncio", "bedrockish.sqlalchemy.asynchronous", "BedrockishDialectAsync")

__all__ = ["BedrockishDialect", "make_url", "run_transaction", "run_transaction_async"]
