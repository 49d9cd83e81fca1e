"""The dead-letter topic of a sink, ``errors.deadletterqueue.topic.name``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from ...connect.dead_letters import context_headers
from ...connect.host import DeadLetter, LetterBox
from ...ground.clients import client_library
from ...ground.errors import Fatal, Transient

_INSTALL = "'confluent-kafka>=2.6'"
_SECONDS = 60.0


class DeadLetterTopic(LetterBox):
    """Sends dead letters to a topic, which is created where there is none. A replayed batch sends its letters again.

    The cluster is that of ``bootstrap.servers``; ``producer.override.*`` are settings of the producer.
    """

    def __init__(self, topic: str, properties: Mapping[str, str]) -> None:
        self._topic = topic
        self._properties = properties
        self._producer: Any = None
        self._refused: list[str] = []

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> DeadLetterTopic | None:
        """The topic of these properties; ``None`` where none is named."""
        topic = properties.get("errors.deadletterqueue.topic.name")
        return cls(topic, properties) if topic else None

    def put(self, letters: Sequence[DeadLetter]) -> None:
        for letter in letters:
            self.send(letter)
        self.flush()
        self.count += len(letters)

    def send(self, letter: DeadLetter) -> None:
        """Sends the record as it was, with headers that say what failed if these are wanted."""
        headers = list(letter.headers)
        if self._properties.get("errors.deadletterqueue.context.headers.enable", "false").lower() == "true":
            headers += context_headers(letter, self._properties.get("name", ""))
        producer = self._opened()
        timestamp = {} if letter.timestamp is None else {"timestamp": letter.timestamp}
        record = partial(producer.produce, self._topic, letter.value, letter.key, headers=headers, **timestamp)
        try:
            record(on_delivery=self._delivered)
        except BufferError:  # the broker is slower than the task
            self.flush()
            record(on_delivery=self._delivered)
        except Exception as refused:
            place = f"{letter.topic}-{letter.partition} at {letter.offset}"
            raise Fatal(
                f"the dead letter of {place} cannot go to the topic {self._topic}: {refused}",
                way_out="raise producer.override.message.max.bytes and the topic's max.message.bytes, leave out "
                "errors.deadletterqueue.context.headers.enable, or take deadLetterPath in place of the topic",
            ) from None
        producer.poll(0)

    def flush(self) -> None:
        """Returns when the broker has all letters. Raises :class:`Transient` where it does not take them."""
        if self._producer is None:
            return
        left = self._producer.flush(_SECONDS)
        if left or self._refused:
            why = self._refused[0] if self._refused else f"no answer within {_SECONDS:g} s"
            raise Transient(f"dead letters do not reach the topic {self._topic}: {why}")

    def close(self) -> None:
        self._producer = None

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self._refused.append(str(error))

    def _opened(self) -> Any:
        if self._producer is None:
            prefix = "producer.override."
            own = {key[len(prefix) :]: value for key, value in self._properties.items() if key.startswith(prefix)}
            settings = {"bootstrap.servers": self._properties["bootstrap.servers"], **own}
            self._create(settings)
            library = client_library("confluent_kafka", _INSTALL, connector="connectors.connect")
            self._producer = library.Producer(settings)
        return self._producer

    def _create(self, settings: Mapping[str, str]) -> None:
        """Makes the topic, with one partition, where there is none; another task may have been faster."""
        admin = client_library("confluent_kafka.admin", _INSTALL, connector="connectors.connect")
        client = admin.AdminClient(dict(settings))
        replicas = int(self._properties.get("errors.deadletterqueue.topic.replication.factor", 3))
        try:
            if self._topic in client.list_topics(timeout=_SECONDS).topics:
                return
            creations = client.create_topics([admin.NewTopic(self._topic, num_partitions=1, replication_factor=replicas)])
            creations[self._topic].result(_SECONDS)
        except Exception as refused:
            if "TOPIC_ALREADY_EXISTS" not in str(refused):
                raise Transient(f"the dead-letter topic {self._topic} cannot be reached or created: {refused}") from refused
