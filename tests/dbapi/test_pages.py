"""The examples of some pages run as they are printed, but for the addresses."""

import re
from pathlib import Path

import pytest
from sqlalchemy.dialects import registry

from bedrockish import connect
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


@BY_URL
def test_documented_loop_over_key_ranges_meets_each_row_once(url: str) -> None:
    (block,) = re.findall(
        r"^```python\n(.*?)^```", Path(ROOT, "docs/sizes.md").read_text(), flags=re.MULTILINE | re.DOTALL
    )
    with connect(url) as db:
        db.execute("CREATE TABLE log(id INTEGER PRIMARY KEY, made INTEGER)")
        db.execute(
            "INSERT INTO log WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 3 FROM n LIMIT 1234) "
            "SELECT x, CASE WHEN x % 2 THEN 20231231 ELSE 20240101 END FROM n"
        )
        exec(compile(block.replace(HOSTS, url.removeprefix("bedrockish://")), "docs/sizes.md", "exec"), {})
        assert db.execute("SELECT made, count(*) FROM log GROUP BY made", read="strict").rows == [(20240101, 617)]
