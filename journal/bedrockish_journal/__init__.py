"""The journal: the decided transactions, in order, in a verifiable form.

The modules directly in this package are pure, but for ``store`` and ``replay``, which use SQLite.
``bedrockish_journal.spark`` is imported inside Spark's workers and stays free of trio, apsw and the node's code.
"""
