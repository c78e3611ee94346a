"""Messages to Kafka, by librdkafka (extra ``[kafka]``)."""

import json
import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka import Message as Told

from bedrockish.errors import UnavailableError, UsageError
from bedrockish.transfer.publish import Message
from bedrockish_journal.model.plain_names import plain_name

WAIT_S = 30.0
_OPTION = re.compile(r"([a-z][a-z0-9._]*)\s*=\s*(.*)")


class Kafka:
    """A topic for each table, ``PREFIX.table``, and ``PREFIX`` for changes of the schema.

    Args:
        brokers: ``host:port``, separated by commas.
        prefix: of the topics.
        options: further ones of librdkafka.
    """

    def __init__(self, brokers: str, prefix: str, options: Mapping[str, str]) -> None:
        self._prefix = prefix
        settings = {"bootstrap.servers": brokers, "message.timeout.ms": str(int(WAIT_S * 1000)), **options}
        # Else what is sent again within librdkafka could overtake, or come twice.
        settings |= {"enable.idempotence": "true"}
        self._settings = settings
        self._producer = self._made()

    def _made(self) -> Producer:
        try:
            return Producer(self._settings, logger=_silent())
        except (KafkaException, ValueError, TypeError) as error:
            raise UsageError(f"Kafka cannot be used so: {_said(error)}") from error

    def deliver(self, messages: Sequence[Message]) -> None:
        """Send messages, and wait until all replicas in sync have them.

        Raises:
            UnavailableError: the brokers do not take them now.
            UsageError: they never will.
        """
        failed: list[KafkaError] = []

        def told(error: KafkaError | None, _message: Told) -> None:
            if error is not None:
                failed.append(error)

        for one in messages:
            topic = self._prefix if one.table is None else f"{self._prefix}.{plain_name(one.table)}"
            value, key = json.dumps(one.value, ensure_ascii=False).encode(), one.key and one.key.encode()
            headers: dict[str, str | bytes | None] = {"id": one.id}
            while True:
                try:
                    self._producer.produce(topic, value, key, headers=headers, on_delivery=told)
                    break
                except BufferError:  # its queue is full
                    self._producer.poll(0.1)
                except KafkaException as error:
                    raise UsageError(f"Kafka takes no message for {topic}: {_said(error)}") from error
        left = self._producer.flush(WAIT_S * 2)
        if left or failed:
            # The remaining messages must not go out after the repeated ones.
            self._producer.purge()
            self._producer.flush(1)
            self._producer = self._made()
            raise UnavailableError(f"Kafka has not taken the messages: {failed[0].str() if failed else 'no answer'}")


def _silent() -> logging.Logger:
    """Return a logger that says nothing: what concerns a user is raised."""
    return logging.Logger("librdkafka", logging.CRITICAL)


def _said(error: Exception) -> str:
    first = error.args[0] if error.args else error
    return str(first.str()) if isinstance(first, KafkaError) else str(first)


def read_options(path: Path) -> dict[str, str]:
    """Read a file of options, as ``name = value``, a line each, with comments after # at the beginning of a line.

    Raises:
        UsageError: it cannot be read, or a line is something else.
    """
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the options in {path} cannot be read: {error}") from error
    found = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        option = _OPTION.fullmatch(line.strip())
        if option is None:
            raise UsageError(f"line {number} of {path} is no option; write name = value")
        found[option[1]] = option[2]
    return found
