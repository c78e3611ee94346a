"""The journal: the decided transactions, in order, in a verifiable form.

The packages ``model`` and ``feed`` are pure.
"""
