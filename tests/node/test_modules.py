"""A member that lacks a module is named before a table of it is approved."""

import pytest

from bedrockish.errors import UnsupportedError
from bedrockish.node.plugins import Plugins

NEAR = "CREATE VIRTUAL TABLE near USING vec0(e float[4])"


def test_member_without_the_module_is_named() -> None:
    plugins = Plugins()
    plugins.learn("B", {"digests": {}, "commands": [], "modules": ["vec0", "vec1"]})
    plugins.check_modules([NEAR], ["B"])
    with pytest.raises(UnsupportedError, match="node C has not reported, since this node started, that it has"):
        plugins.check_modules([NEAR], ["B", "C"])
    plugins.learn("C", {"digests": {}, "commands": []})  # a report of a release that does not know modules
    plugins.learn("D", {"digests": {}, "commands": [], "modules": ["vec1"]})
    with pytest.raises(UnsupportedError, match="node D lacks the module vec0; install sqlite-vec there"):
        plugins.check_modules([NEAR], ["B", "D"])
    plugins.check_modules(["CREATE VIRTUAL TABLE f USING fts5(x)", "CREATE TABLE t(x)"], ["B", "C", "D"])


def test_node_reports_its_vector_modules() -> None:
    pytest.importorskip("sqlite_vec")
    assert Plugins().hello_facts()["modules"] == ["vec0", "vec1"]
