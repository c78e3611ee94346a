"""The table ``changes``: a row for each change of a row, of any table, with the rows before and after it as JSON."""

from collections.abc import Iterable, Sequence
from typing import Any

from bedrockish_journal.model.changes import DELETE, INSERT, UPDATE
from bedrockish_journal.model.plain_names import folded
from bedrockish_journal.spark.source.change_batches import ChangeBuilder, Image, TableChanges
from bedrockish_journal.spark.source.columns import Part, Types
from bedrockish_journal.spark.source.context import HEAD, Context, head
from bedrockish_journal.spark.source.json_rows import row_texts, value_texts

CHANGES: Types = {
    **HEAD,
    "seq_in_txn": "INT",
    "table": "STRING",
    "rowid": "BIGINT",
    "rowid_after": "BIGINT",
    "pk": "STRING",
    "pk_after": "STRING",
    "_change_type": "STRING",
    "before": "STRING",
    "after": "STRING",
    "command": "STRING",
    "user_name": "STRING",
}
_TYPES = {INSERT: "insert", UPDATE: "update", DELETE: "delete"}


class ChangeRows(ChangeBuilder):
    """A builder of columns of the table ``changes``.

    Args:
        context: the context of the journal, with the tables whose changes are wanted.
    """

    def __init__(self, context: Context, types: Types) -> None:
        super().__init__(context, types, makers=("command", "user_name"))

    def _wants(self, table: str) -> bool:
        named = self._context.named
        return named is None or folded(table) in named

    def _parts(self, one: TableChanges) -> Iterable[Part]:
        return [(one.order, self._columns(one))]

    def _columns(self, one: TableChanges) -> dict[str, Sequence[Any]]:
        heads = zip(*[head(self._context, row) for row in one.rows], strict=True)
        found: dict[str, Sequence[Any]] = {
            name: one.of_entries(values) for name, values in zip(HEAD, heads, strict=True) if name in self._types
        }
        found |= {"seq_in_txn": one.numbers, "table": [one.name] * len(one.order)}
        found |= {"rowid": one.rowids, "rowid_after": one.rowids_after, "command": one.makers, "user_name": one.users}
        found["_change_type"] = [_TYPES[op] for op in one.ops]
        wants_keys = not self._types.keys().isdisjoint(("pk", "pk_after"))
        key = self._context.key_columns(one.name, one.columns) if wants_keys else ((), ())
        found["before"], found["pk"] = self._texts(one.columns, key, one.before, "before")
        found["after"], found["pk_after"] = self._texts(one.columns, key, one.after, "after")
        if key[0]:  # ``pk`` is the key before the change; a new row has a key only after it
            pairs = zip(one.before, found["pk"], found["pk_after"], strict=True)
            found["pk"] = [after if image is None else before for image, before, after in pairs]
        return found

    def _texts(
        self, columns: tuple[str, ...], key: tuple[tuple[str, ...], tuple[int, ...]], images: list[Image], name: str
    ) -> tuple[list[str | None], list[str | None]]:
        """Return rows and their keys as JSON; None for rows or keys that are not wanted."""
        is_wanted = name in self._types
        there = [image for image in images if image is not None]
        if not there or not (is_wanted or key[0]):
            return [None] * len(images), [None] * len(images)
        texts = list(map(value_texts, zip(*there, strict=True)))
        rows = row_texts(columns, texts, len(there)) if is_wanted else []
        keys = row_texts(key[0], [texts[place] for place in key[1]], len(there)) if key[0] else []
        return _by_image(images, rows), _by_image(images, keys)


def _by_image(images: list[Image], texts: list[str]) -> list[str | None]:
    """Return one of ``texts`` for each image (a row before or after its change), or None for an image that is None."""
    if not texts:
        return [None] * len(images)
    if len(texts) == len(images):
        return list(texts)
    left = iter(texts)
    return [None if image is None else next(left) for image in images]
