"""Django on a cluster: ``ENGINE = "bedrockish.django"``, ``NAME`` the URL.

``base`` is the database backend: Django's backend for SQLite, on our DB-API. ``functions`` is a plugin for the nodes,
with Django's SQL functions. ``run_transaction`` retries a transaction that conflicted with another one.
"""

import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from bedrockish.common.pauses import Pauses

P = ParamSpec("P")
T = TypeVar("T")
TIMEOUT_S = 30.0


def run_transaction(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a function in ``transaction.atomic()``, and run all of it again if it lost to another transaction.

    The function may be run several times, so it should change nothing but the database. It is run on the database
    ``default``, for at most 30 seconds.

    Raises:
        OperationalError: the transaction could not be committed in time, or its outcome is unknown: then the error's
            cause, an error of ``bedrockish.dbapi``, has the code ``unknown``.
    """
    from django.db import OperationalError, transaction

    pauses = Pauses(TIMEOUT_S)
    while True:
        try:
            with transaction.atomic(durable=True):
                return function(*args, **kwargs)
        except OperationalError as error:
            pause_s = pauses.draw() if getattr(error.__cause__, "retry", False) else None
            if pause_s is None:
                raise
        time.sleep(pause_s)
