"""A worker right after a start sees all commits of the node."""

import shutil
from pathlib import Path

from bedrockish.engine.execution.workspace import Workspace
from tests.engine.nodes import TestNode, request
from tests.engine.test_workspace import begin, in_thread


def test_worker_sees_the_wal_of_a_killed_node(tmp_path: Path) -> None:
    """The worker runs before the first commit after the start."""
    (tmp_path / "old").mkdir()
    (tmp_path / "new").mkdir()
    killed = TestNode(tmp_path / "old" / "a.db")
    killed.run("CREATE TABLE t(n)")
    killed.run("INSERT INTO t VALUES (1), (2)")
    killed.save()
    for name in ("a.db", "a.db-wal"):
        shutil.copy(tmp_path / "old" / name, tmp_path / "new" / name)
    killed.engine.close()
    node = TestNode(tmp_path / "new" / "a.db")
    workspace = Workspace(node.engine.connector())
    begin(node, workspace)
    text = "UPDATE t SET n = n + 1 RETURNING n"
    assert in_thread(lambda: workspace.execute(request(text))) == node.prepare(text)
    workspace.end()
    workspace.close()
    node.engine.close()
