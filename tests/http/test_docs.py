"""The commands of docs/http.md work unchanged."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import bedrockish
from bedrockish import errors
from bedrockish.api.json_forms import OPTIONS, ROWS, status_of
from bedrockish.errors import BedrockishError
from bedrockish.http.app import OPERATIONS
from tools.cluster import LocalCluster

PAGE = (Path(__file__).parents[2] / "docs" / "http.md").read_text()
BLOCKS = re.findall(r"^```sh\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)


def test_every_path_option_and_status_is_on_the_page() -> None:
    """The page has every path, option and status."""
    assert not [path for _, path, _ in OPERATIONS if path not in PAGE]
    assert not [option for option in (*OPTIONS, ROWS) if f"`{option}`" not in PAGE]
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, BedrockishError)]
    assert not [status for kind in kinds if str(status := status_of(kind.__new__(kind))) not in PAGE and status < 500]


@pytest.mark.cluster
@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl here")
def test_curl_commands_of_the_http_page_work(three: LocalCluster) -> None:
    """Run each command as printed, with the ports of a running cluster."""
    ports = {str(4001 + index): str(node.http_port) for index, node in enumerate(three.nodes)}
    answers = []
    for command in [line for block in BLOCKS for line in block.splitlines()]:
        typed = re.sub(r"\b400\d\b", lambda match: ports[match[0]], command)
        # A curl older than 7.82 does not know --json, which is short for these.
        typed = typed.replace("--json", "-H 'Content-Type: application/json' -d")
        done = subprocess.run(["sh", "-c", typed + " -f"], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, (command, done.stderr, done.stdout)
        answers.append(done.stdout)
    assert json.loads(answers[2])["results"][0]["rows"] == [[1, "Alice", 100], [2, "Bob", 0]]
    assert json.loads(answers[3])["results"][0]["rows"] == [{"owner": "Alice"}]
    assert answers[4].splitlines()[1:] == ['[2,"Bob",0]', '{"rows":1}']
    assert answers[5].splitlines()[1:] == ['[1,"Alice"]', '[2,"Bob"]', '{"rows":2}']
    first, again = json.loads(answers[6]), json.loads(answers[7])
    # The places may differ: if a disk stalls, another node adopts the transaction, which has two labels then.
    assert first["command"] == again["command"] == "pay-7"
    assert first["results"][0]["rowcount"] == again["results"][0]["rowcount"] == 2
    with bedrockish.connect(three.url()) as db:
        assert db.execute("SELECT balance FROM customer ORDER BY id", read="strict").rows == [(101,), (1,)]
    assert any(answer.startswith("# HELP bedrockish_commits_total") for answer in answers)
