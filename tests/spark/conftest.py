"""One Spark session for all tests that need one: it takes seconds to start and cannot be started twice in a process."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.spark.session import small_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> "Iterator[SparkSession]":
    """Return a session with the data source registered."""
    session = small_session()
    yield session
    session.stop()
