"""A program that opens a file loads the engine, and nothing of a node. Modules are counted: seconds vary."""

import subprocess
import sys

from tools.cluster import LocalNode, clean_environment

OPEN = """
import sys, threading
import bedrockish
with bedrockish.connect(sys.argv[1]) as db:
    assert db.execute("SELECT 1").value() == 1
    with db.transaction() as transaction:
        assert transaction.execute("SELECT 1").value() == 1
print(*sys.modules)
"""
IMPORT = """
import sys, threading
import bedrockish.client.blocking, bedrockish.client.local_steps, bedrockish.local.reads, bedrockish.local.transactions
print(threading.active_count(), *sys.modules)
"""
STRANGERS = {"trio", "asyncio", "attr", "click", "rich", "cryptography", "networkx", "httptools", "pydantic", "tomllib"}
ROOMS = {"node", "config", "cli", "http", "transfer", "sqlalchemy", "django", "embedded"}
CORE = {
    "bedrockish.core",
    "bedrockish.core.protocol",
    "bedrockish.core.protocol.records",
    "bedrockish.core.protocol.health",
}
PROJECT = ("bedrockish", "bedrockish_journal", "bedrockish_net")
OWN_MAX, ALL_MAX = 194, 340  # Python 3.13 itself loads six more modules than 3.11


def modules(program: str, *arguments: str) -> list[str]:
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.check_output(command, env=clean_environment(), text=True, timeout=60).split()


def of_a_node(loaded: list[str]) -> list[str]:
    """Return the modules that only a node needs."""
    rooms = {f"bedrockish.{room}" for room in ROOMS}
    return [
        name
        for name in loaded
        if name.partition(".")[0] in STRANGERS
        or ".".join(name.split(".")[:2]) in rooms
        or (name.startswith("bedrockish.core") and name not in CORE)
    ]


def test_program_that_opens_a_file_loads_nothing_of_a_node(node: LocalNode) -> None:
    loaded = modules(OPEN, str(node.database))
    assert "bedrockish.engine.execution.workspace" in loaded
    assert of_a_node(loaded) == []
    assert len([name for name in loaded if name.partition(".")[0] in PROJECT]) <= OWN_MAX
    assert len(loaded) <= ALL_MAX


def test_import_of_the_engine_starts_nothing() -> None:
    threads, *loaded = modules(IMPORT)
    assert threads == "1"
    assert of_a_node(loaded) == []
