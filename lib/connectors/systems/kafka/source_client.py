"""What of ``kafka.*`` concerns a consumer: Spark's names of the Java client, translated, refused, or tried out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from ...core.errors import ConnectorError, Problem
from ...core.options import Values, redacted
from .client import check_config, client_config
from .failures import client

_RENAMED: Final[Mapping[str, str]] = {
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    "max.partition.fetch.bytes": "fetch.message.max.bytes",
    "request.timeout.ms": "socket.timeout.ms",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "send.buffer.bytes": "socket.send.buffer.bytes",
}
_WITHOUT_MEANING: Final = frozenset(
    {
        "max.poll.records",
        "default.api.timeout.ms",
        "metrics.num.samples",
        "metrics.recording.level",
        "metrics.sample.window.ms",
        "exclude.internal.topics",
        "auto.include.jmx.reporter",
        "ssl.protocol",
        "ssl.enabled.protocols",
    }
)
"""Settings of the Java client that have no counterpart, and without which the same rows are read."""
_OF_SOURCE: Final = "is no option of this source; "
_KERBEROS: Final = "is not supported: the Python client has no Kerberos. Take PLAIN, SCRAM or OAUTHBEARER."
REFUSED: Final[Mapping[str, str]] = {
    "kafka.auto.offset.reset": f"{_OF_SOURCE}it begins where startingOffsets says, and failOnDataLoss says what a loss means.",
    "kafka.enable.auto.commit": f"{_OF_SOURCE}offsets are in the checkpoint, and commitOffsets publishes them.",
    "kafka.enable.auto.offset.store": f"{_OF_SOURCE}offsets are in the checkpoint.",
    "kafka.enable.partition.eof": f"{_OF_SOURCE}it is always on.",
    "kafka.key.deserializer": f"{_OF_SOURCE}keys are bytes, or what key.format says.",
    "kafka.value.deserializer": f"{_OF_SOURCE}values are bytes, or what value.format says.",
    "kafka.metric.reporters": "names a Java class.",
    "kafka.sasl.client.callback.handler.class": "names a Java class.",
    "kafka.sasl.kerberos.service.name": _KERBEROS,
    "kafka.sasl.kerberos.keytab": _KERBEROS,
    "kafka.sasl.kerberos.principal": _KERBEROS,
    "kafka.ssl.truststore.password": "has no use without a Java key store; give kafka.ssl.ca.location, a file in PEM.",
    "kafka.ssl.truststore.certificates": "is not supported; give kafka.ssl.ca.location or kafka.ssl.ca.pem.",
}
_FIXED: Final = {
    "enable.auto.commit": "false",
    "enable.auto.offset.store": "false",
    "enable.partition.eof": "true",
    "auto.offset.reset": "error",
    "allow.auto.create.topics": "false",
}
_TUNED: Final = {
    "queued.min.messages": "200000",
    "fetch.message.max.bytes": "4194304",
    "queued.max.messages.kbytes": "65536",
    # a range is there when it is read: a broker that is asked to wait for more only holds up the next range
    "fetch.wait.max.ms": "10",
    "fetch.queue.backoff.ms": "10",
}


def consumer_config(values: Values, group: str) -> dict[str, str]:
    """The settings of every consumer of a query. ``group`` is named by them only; it is never joined."""
    own = {"isolation.level": values["kafka.isolation.level"], "group.id": group}
    return {**_TUNED, **_translated(client_config(values)), **own, **_FIXED}


def _translated(config: Mapping[str, str]) -> dict[str, str]:
    return {_RENAMED.get(name, name): value for name, value in config.items() if name not in _WITHOUT_MEANING}


def check_settings(values: Values) -> Iterator[Problem]:
    """What is wrong with the ``kafka.*`` options, as far as can be told without the cluster."""
    found = list(check_config(values))
    yield from found
    told = {problem.option for problem in found}
    for option, value in values.extra.items():
        if option not in told and (why := _refused_by_client({option: value})) is not None:
            yield Problem(option, f"is not taken by the Kafka client: {why} Got {redacted(option, value)}.")


def _refused_by_client(given: Mapping[str, str]) -> str | None:
    """Why the client does not know a setting, or not its value; ``None`` if it does."""
    config = _translated(client_config(Values({}, frozenset(), given)))
    config.pop("security.protocol", None)  # it needs others beside it
    try:
        api = client()
    except ConnectorError:  # the query will say what to install
        return None
    try:
        api.Consumer({**config, "group.id": "check", "log_level": "0"}).close()
    except api.KafkaException as refused:
        text = str(refused.args[0].str())
        return f"{text}." if text.startswith(("No such configuration", "Invalid value")) else None
    return None
