"""One Spark session for all tests that need one: it takes seconds to start and cannot be started twice in a process."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from bedrockish_journal.spark.session import SparkUnavailableError, check_installed, check_java, quiet_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> "Iterator[SparkSession]":
    """Return a session with the data source registered."""
    try:
        check_installed("pyspark", "pyarrow")
        check_java()
    except SparkUnavailableError as error:
        pytest.skip(str(error))
    session = quiet_session("tests", cores=2, memory="1g", brief=True)
    session.conf.set("spark.sql.shuffle.partitions", "2")
    yield session
    session.stop()
