"""Prints an event of a world in one line."""

from bedrockish.core.protocol import messages as says
from bedrockish_journal.model.entry import decode_label
from bedrockish_journal.model.transaction import Txid, decode_transaction


def short(value: object) -> str:
    """Return a value as one line, without its bytes."""
    if isinstance(value, str):
        return value
    match value:
        case says.Begin(body) | says.Recover(body) | says.Accept(body):
            transaction = decode_transaction(body)
            text = f"{transaction.txid} {transaction.command} base={dict(transaction.base)}"
            if transaction.rollbacks:
                text += " rollbacks=" + ",".join(map(str, transaction.rollbacks))
            more = [f"b={value.ballot}"] if not isinstance(value, says.Begin) else []
            more += [f"commit={value.commit}"] if isinstance(value, says.Accept) else []
            return " ".join([type(value).__name__, text, *more])
        case says.Commit(label, body):
            leader, tick, txid = decode_label(label)[:3]
            return f"Commit {leader}{tick} {txid}{' with body' if body else ''}"
        case says.Entries(entries):
            places = [decode_label(label)[:3] for _, label, _ in entries]
            return "Entries " + " ".join(f"{leader}{tick}" for leader, tick, _ in places)
        case says.Promise():
            blockers = ",".join(str(decode_transaction(body).txid) for body in value.blockers)
            return (
                f"Promise {value.txid} b={value.ballot} {says.Standing(value.standing).name} accepted={value.accepted} "
                f"blockers=[{blockers}] ended=[{','.join(map(str, value.ended))}]"
            )
    fields = getattr(value, "__dataclass_fields__", None)
    if fields is None:
        return str(value) if isinstance(value, Txid) else repr(value)[:100]
    return f"{type(value).__name__} " + " ".join(
        f"{name}={short(getattr(value, name))}" for name in fields if name not in ("store", "access_set", "statements")
    )
