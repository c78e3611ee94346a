"""Tells SQLAlchemy's suite about the dialect, and records the outcome of each test, to compare databases."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.dialects import registry
from sqlalchemy.testing.provision import drop_all_schema_objects_pre_tables, temp_table_keyword_args, upsert

RECORD = "SUITE_RECORD"
_outcomes: dict[str, tuple[str, str]] = {}

for _name in ("bedrockish", "bedrockish.bedrockish"):  # the suite writes the name of the driver into URLs
    registry.register(_name, "bedrockish.sqlalchemy.dialect", "BedrockishDialect")


@upsert.for_db("bedrockish")
def _upsert(
    cfg: Any, table: Any, returning: Any, *, set_lambda: Any = None, sort_by_parameter_order: bool = False
) -> Any:
    from sqlalchemy.dialects.sqlite import insert

    statement = insert(table)
    if set_lambda:
        statement = statement.on_conflict_do_update(set_=set_lambda(statement.excluded))
    else:
        statement = statement.on_conflict_do_nothing()
    return statement.returning(*returning, sort_by_parameter_order=sort_by_parameter_order)


@temp_table_keyword_args.for_db("bedrockish")
def _temp_table_keyword_args(cfg: Any, eng: Any) -> dict[str, Any]:
    return {"prefixes": ["TEMPORARY"]}


@drop_all_schema_objects_pre_tables.for_db("bedrockish")
def _before_tables_are_dropped(cfg: Any, eng: Any) -> None:
    """Do nothing, because nothing prevents dropping tables."""


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    test = re.sub(r"_(?:sqlite|bedrockish)\+\w+", "", report.nodeid.partition("::")[2])
    if report.outcome == "skipped" and isinstance(report.longrepr, tuple):
        _outcomes[test] = ("skipped", str(report.longrepr[2]).removeprefix("Skipped: "))
    elif report.outcome == "failed":
        lines = str(report.longrepr).strip().splitlines()
        _outcomes[test] = ("failed", next((line for line in reversed(lines) if line.startswith("E ")), lines[-1]))
    elif report.when == "call":
        _outcomes.setdefault(test, (report.outcome, ""))


def pytest_unconfigure(config: pytest.Config) -> None:
    if path := os.environ.get(RECORD):
        Path(path).write_text(json.dumps(_outcomes, indent=1))
