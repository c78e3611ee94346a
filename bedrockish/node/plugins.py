"""The modules that a node's configuration names, with functions and collations for SQLite.

All nodes should have the same modules. During an update the modules may differ, so each node tells the others its
modules, and the status shows the differences.
"""

import hashlib
import importlib
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import apsw

from bedrockish.access_sets.definitions import folded
from bedrockish.engine.derived.modules import PACKAGES, installed, needed
from bedrockish.errors import ConfigError, UnsupportedError

logger = logging.getLogger(__name__)
_DEFINED = """SELECT name, narg, builtin FROM pragma_function_list
    UNION ALL SELECT name, NULL, NULL FROM pragma_collation_list"""


class Plugins:
    """The modules of one node, and the modules that other nodes have reported."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self.digests: dict[str, str] = {}  # the digest of each module's source, by name
        self.others: dict[str, dict[str, str]] = {}  # by node: the digest of each module
        self._modules: dict[str, frozenset[str]] = {}  # names of vector modules, by node
        self._registers: list[tuple[str, Callable[[apsw.Connection], object]]] = []
        self._warned: dict[str, str] = {}
        for name in names:
            self._load(name)

    def _load(self, name: str) -> None:
        try:
            module = importlib.import_module(name)
        except Exception as error:
            raise ConfigError(
                f"plugins: {name} cannot be imported: {type(error).__name__}: {error}; it must be a module that the "
                "node's Python finds (see PYTHONPATH)"
            ) from error
        self.digests[name] = _digest(module)
        register = getattr(module, "register", None)
        if register is None:
            raise ConfigError(f"plugins: {name} has no function register(connection); see docs/plugins.md")
        self._registers.append((name, register))

    def prepare(self, db: apsw.Connection) -> None:
        """Register the modules' additions with a connection.

        Raises:
            ConfigError: a module's ``register`` fails.
        """
        for name, register in self._registers:
            try:
                register(db)
            except Exception as error:
                raise ConfigError(f"plugins: {name}: register failed: {type(error).__name__}: {error}") from error

    def defined(self) -> list[str]:
        """Return the names of the functions and collations that the modules register, in lower case."""
        if not self._registers:
            return []
        with closing(apsw.Connection(":memory:")) as db:
            before = set(db.execute(_DEFINED))
            self.prepare(db)
            return sorted({folded(str(name)) for name, *_ in set(db.execute(_DEFINED)) - before})

    def hello_facts(self) -> dict[str, Any]:
        """Return the facts about this node's modules that other nodes get in a HELLO."""
        return {"digests": dict(self.digests), "modules": sorted(installed())}

    def learn(self, node: str, told: object) -> None:
        """Record another node's modules, and warn if they differ from ours."""
        digests: dict[str, str] = {}
        if isinstance(told, Mapping):
            listed, modules = told.get("digests"), told.get("modules")
            if isinstance(modules, list):
                self._modules[node] = frozenset(str(name) for name in modules)
            if isinstance(listed, Mapping):
                digests = {str(name): str(digest) for name, digest in listed.items()}
        self.others[node] = digests
        difference = self.difference(node)
        if difference and self._warned.get(node) != difference:
            logger.warning("plugins differ: %s; install the same ones everywhere", difference)
        self._warned[node] = difference

    def check_modules(self, statements: Iterable[str], others: Iterable[str]) -> None:
        """Check that other members have the vector modules of the tables that statements create.

        Raises:
            UnsupportedError: a member lacks a module, or has not reported its modules yet.
        """
        nodes = sorted(others)
        for module in needed(statements):
            for node in nodes:
                if module not in self._modules.get(node, frozenset()):
                    why = "lacks" if node in self._modules else "has not reported, since this node started, that it has"
                    raise UnsupportedError(f"node {node} {why} the module {module}; install {PACKAGES[module]} there")

    def difference(self, node: str) -> str:
        """Return the differences of another node's modules from ours, in words; empty if they are equal or unknown."""
        theirs = self.others.get(node, self.digests)
        parts = [f"{node} has no {name}" for name in self.digests if name not in theirs]
        parts += [f"{node} has {name}, and this node has not" for name in theirs if name not in self.digests]
        both = [name for name in self.digests if name in theirs]
        parts += [f"{name} is another version at {node}" for name in both if self.digests[name] != theirs[name]]
        return "; ".join(parts)

    def describe(self) -> dict[str, Any]:
        """Return the part of the node's status about modules."""
        differ = {node: text for node in sorted(self.others) if (text := self.difference(node))}
        return {"modules": dict(self.digests), "differ": differ}


def _digest(module: ModuleType) -> str:
    """Return the digest of a module's source; for a package, of all Python files in its folder."""
    digest = hashlib.sha256()
    paths = [Path(place) for place in getattr(module, "__path__", ())]
    files = sorted(file for place in paths for file in place.rglob("*.py"))
    source = getattr(module, "__file__", None)
    if not files and source is not None:
        files = [Path(source)]
    for file in files:
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:16]
