"""The SQLAlchemy dialect: ``create_engine("bedrockish://[host1:7373,host2:7373]/")``. See ``dialect``."""

from sqlalchemy.dialects import registry

from bedrockish.sqlalchemy.again import run_transaction, run_transaction_async
from bedrockish.sqlalchemy.dialect import BedrockishDialect
from bedrockish.sqlalchemy.urls import make_url

# If the package is imported without being installed, it has no entry points that register the dialect.
registry.register("bedrockish.asyncio", "bedrockish.sqlalchemy.asynchronous", "BedrockishDialectAsync")

__all__ = ["BedrockishDialect", "make_url", "run_transaction", "run_transaction_async"]
