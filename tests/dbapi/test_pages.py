"""The examples of some pages run as they are printed, but for the addresses."""

import re
from pathlib import Path

import pytest
from sqlalchemy.dialects import registry

from tests.dbapi.conftest import BY_URL
from tools.cluster import ROOT

pytestmark = pytest.mark.cluster
HOSTS = "127.0.0.1:7401,127.0.0.1:7402,127.0.0.1:7403"
AS_OPTIONS = "127.0.0.1:7401/?host=127.0.0.1:7402&host=127.0.0.1:7403"


@BY_URL
@pytest.mark.parametrize(
    ("page", "prints"),
    [
        ("docs/dbapi.md", ["Ann", "Bob", "Cleo"]),
        ("docs/sqlalchemy.md", ["hello", "counted: 1"]),
        ("docs/migrating.md", ["write docs 1", "finished"]),
        ("docs/retry.md", ["left: 70", "left: 65"]),
        ("docs/pools.md", ["visits: 20", "balance: 100"]),
    ],
)
def test_examples_of_a_page_run(page: str, prints: list[str], url: str, capsys: pytest.CaptureFixture[str]) -> None:
    registry.register("bedrockish", "bedrockish.sqlalchemy.dialect", "BedrockishDialect")
    blocks = re.findall(r"^```python\n(.*?)^```", Path(ROOT, page).read_text(), flags=re.MULTILINE | re.DOTALL)
    assert blocks
    for block in blocks:
        assert HOSTS in block or AS_OPTIONS in block
        host = url.removeprefix("bedrockish://")
        block = block.replace(HOSTS, host).replace(AS_OPTIONS, f"{host}/?host={host}")
        exec(compile(block, page, "exec"), {})
    printed = capsys.readouterr().out
    assert all(word in printed for word in prints)
