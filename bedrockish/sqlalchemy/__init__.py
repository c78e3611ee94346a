"""The SQLAlchemy dialect: ``create_engine("bedrockish://[host1:7373,host2:7373]/")``. See ``dialect``."""

from bedrockish.sqlalchemy.dialect import BedrockishDialect
from bedrockish.sqlalchemy.urls import make_url

__all__ = ["BedrockishDialect", "make_url"]
