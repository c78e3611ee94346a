"""A running node: the event loop that feeds the core and performs its effects, client sessions, plugins.

``bedrockish.node()`` starts a node as a child process: a call of this package calls ``bedrockish.embedded.node``.
"""

import sys
from os import PathLike
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bedrockish.embedded import Node


class _Package(ModuleType):
    """This package, which is also the function that starts a node."""

    def __call__(self, config: str | PathLike[str] | None = None) -> "Node":
        """Start a node; see ``bedrockish.embedded.node``."""
        from bedrockish.embedded import node

        return node(config)


sys.modules[__name__].__class__ = _Package
