"""The journal: the decided transactions, in order, in a verifiable form.

The packages ``model`` and ``feed`` are pure. Spark's workers import ``spark``, which therefore must not import apsw or
trio.
"""
