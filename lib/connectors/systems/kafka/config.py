"""The ``kafka.*`` options as settings of the client: names and values of the Java client are translated, or refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from ...core.datasets import Dataset, of_server
from ...ground.errors import ConnectorError, Problem
from ...ground.options import Values, redacted
from .errors import ClientReports, client

PREFIX: Final = "kafka."

CREDENTIAL_REFUSED: Final = {
    "databricks.serviceCredential": "is not taken: Kafka's Python client gets its tokens by itself. Give it an application's "
    "id, secret and token endpoint, as Entra has them (kafka.sasl.mechanism=OAUTHBEARER, kafka.sasl.oauthbearer.method=oidc), "
    "or a user or a certificate, by kafka.* options; secrets as {{secrets/catalog.schema.secret}}.",
}
_PEM: Final = "is a Java key store; give PEM files, by kafka.ssl.ca.location, kafka.ssl.certificate.location and so on."
_OF_JAVA: Final = "names a Java class; keys and values are bytes here, made by key.format and value.format."
_REFUSED: Final = {
    **dict.fromkeys(("key.serializer", "value.serializer", "key.deserializer", "value.deserializer"), _OF_JAVA),
    **dict.fromkeys(("interceptor.classes", "partitioner.class", "sasl.login.callback.handler.class"), "names a Java class."),
    **{f"ssl.{store}.{part}": _PEM for store in ("truststore", "keystore") for part in ("location", "type")},
}
_JAAS: Final = "sasl.jaas.config"
_LOGIN: Final = re.compile(r'\b(username|password)\s*=\s*"((?:[^"\\]|\\.)*)"')
_MODULES: Final = ("PlainLoginModule", "ScramLoginModule")


def _kibibytes(value: str) -> str:
    """``value`` in bytes as KiB; unchanged if :func:`check_config` refuses it."""
    return str(max(1, int(value) // 1024)) if value.isdecimal() else value


_RENAMED: Final[dict[str, tuple[str, Callable[[str], str]]]] = {
    "max.request.size": ("message.max.bytes", str),
    "buffer.memory": ("queue.buffering.max.kbytes", _kibibytes),
    "delivery.timeout.ms": ("message.timeout.ms", str),
    "ssl.keystore.key": ("ssl.key.pem", str),
    "ssl.keystore.certificate.chain": ("ssl.certificate.pem", str),
    "ssl.truststore.certificates": ("ssl.ca.pem", str),
    "ssl.endpoint.identification.algorithm": ("ssl.endpoint.identification.algorithm", lambda value: value or "none"),
    "acks": ("acks", lambda value: "all" if value == "-1" else value),
}
_NUMBERS: Final = (
    "batch.size", "buffer.memory", "delivery.timeout.ms", "max.request.size", "message.max.bytes", "message.timeout.ms",
    "queue.buffering.max.kbytes", "queue.buffering.max.messages",
)  # fmt: skip
"""Settings that the sink calculates with."""
_WITHOUT_MEANING: Final = frozenset({"max.block.ms", "client.dns.lookup", "metadata.max.idle.ms", "security.providers"})


def client_config(values: Values) -> dict[str, str]:
    """The options that pass through, under the client's names."""
    config: dict[str, str] = {}
    for name, value in _options(values).items():
        if name == _JAAS:
            login = {key: re.sub(r"\\(.)", r"\1", text) for key, text in _LOGIN.findall(value)}
            config.update({f"sasl.{key}": text for key, text in login.items()})
        elif name not in _WITHOUT_MEANING:
            translated, convert = _RENAMED.get(name, (name, str))
            config[translated] = convert(value)
    return {"log_level": "2", **config}  # outages become errors; the client would also print each of them


def check_config(values: Values) -> Iterator[Problem]:
    """The problems of ``kafka.*`` options that are visible without a broker."""
    options = _options(values)
    if not options.get("bootstrap.servers"):
        text = 'missing; give brokers as host:port, such as "broker-1:9092,broker-2:9092".'
        yield Problem("kafka.bootstrap.servers", text)
    for name, value in options.items():
        if name in _REFUSED:
            yield Problem(PREFIX + name, _REFUSED[name])
        if name in _NUMBERS and not value.isdecimal():
            yield Problem(PREFIX + name, f'must be a whole number, without a unit; got "{value}".')
        if name == _JAAS and not (any(module in value for module in _MODULES) and len(_LOGIN.findall(value)) >= 2):
            text = f"must be a {' or '.join(_MODULES)} with username and password; or give kafka.sasl.username and so on."
            yield Problem(PREFIX + name, text)
    if "gssapi" in options.get("sasl.mechanism", options.get("sasl.mechanisms", "")).lower():
        text = "GSSAPI (Kerberos) is not in the Python client; take PLAIN, SCRAM or OAUTHBEARER."
        yield Problem("kafka.sasl.mechanism", text)


def _options(values: Values) -> dict[str, str]:
    return {name.removeprefix(PREFIX): value for name, value in values.extra.items() if name.startswith(PREFIX)}


_CONNECTION: Final = (
    "bootstrap.servers", "client.id", "security.protocol", "sasl.", "ssl.", "socket.", "broker.", "log_level", "enable.ssl",
    "reconnect.", "connections.", "api.version", "metadata.", "debug", "https.", "retry.backoff",
)  # fmt: skip


def connection_config(config: Mapping[str, str]) -> dict[str, str]:
    """The settings for every kind of client, without those for only a producer or a consumer."""
    return {key: value for key, value in config.items() if key.startswith(_CONNECTION)}


def producer_config(config: Mapping[str, str], largest: int, reports: ClientReports) -> dict[str, Any]:
    """The settings of a producer: Kafka's own partitioning, and batches of at most ``largest`` bytes; the user's win.

    A topic's limit for a record also applies to a batch: it refuses a larger batch, whatever is in it.
    """
    defaults = {
        "partitioner": "murmur2_random",
        "linger.ms": "20",
        "batch.size": str(min(1_000_000, largest)),
        "message.max.bytes": "1000000000",  # the topic's limit is checked record by record
        "queue.buffering.max.messages": "500000",
        "queue.buffering.max.kbytes": "262144",
        "delivery.report.only.error": True,
        "enable.idempotence": "true",
    }
    return {**defaults, **config, "error_cb": reports.failed, "on_delivery": reports.delivered}


_CONSUMER_RENAMED: Final[Mapping[str, str]] = {
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    "max.partition.fetch.bytes": "fetch.message.max.bytes",
    "request.timeout.ms": "socket.timeout.ms",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "send.buffer.bytes": "socket.send.buffer.bytes",
}
_CONSUMER_WITHOUT_MEANING: Final = frozenset({
    "max.poll.records", "default.api.timeout.ms", "metrics.num.samples", "metrics.recording.level",
    "metrics.sample.window.ms", "exclude.internal.topics", "auto.include.jmx.reporter", "ssl.protocol",
    "ssl.enabled.protocols",
})  # fmt: skip
"""Settings of the Java client without counterpart here; they do not change which rows are read."""
_NO_OPTION: Final = "is no option of this source; "
_KERBEROS: Final = "is not supported: the Python client has no Kerberos. Take PLAIN, SCRAM or OAUTHBEARER."
SOURCE_REFUSED: Final[Mapping[str, str]] = {
    **CREDENTIAL_REFUSED,
    "kafka.auto.offset.reset": f"{_NO_OPTION}it begins where startingOffsets says, and failOnDataLoss says what a loss means.",
    "kafka.enable.auto.commit": f"{_NO_OPTION}offsets are in the checkpoint, and commitOffsets publishes them.",
    "kafka.enable.auto.offset.store": f"{_NO_OPTION}offsets are in the checkpoint.",
    "kafka.enable.partition.eof": f"{_NO_OPTION}it is always on.",
    "kafka.key.deserializer": f"{_NO_OPTION}keys are bytes, or what key.format says.",
    "kafka.value.deserializer": f"{_NO_OPTION}values are bytes, or what value.format says.",
    "kafka.metric.reporters": "names a Java class.",
    "kafka.sasl.client.callback.handler.class": "names a Java class.",
    "kafka.sasl.kerberos.service.name": _KERBEROS,
    "kafka.sasl.kerberos.keytab": _KERBEROS,
    "kafka.sasl.kerberos.principal": _KERBEROS,
    "kafka.ssl.truststore.password": "has no use without a Java key store; give kafka.ssl.ca.location, a file in PEM.",
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
    # the records of a range already exist: a broker that waits for more only delays the next range
    "fetch.wait.max.ms": "10",
    "fetch.queue.backoff.ms": "10",
}


def consumer_config(values: Values, group: str) -> dict[str, str]:
    """The settings of every consumer of a query. A consumer names its ``group`` but never joins it."""
    own = {"isolation.level": values["kafka.isolation.level"], "group.id": group}
    return {**_TUNED, **_translated(client_config(values)), **own, **_FIXED}


def _translated(config: Mapping[str, str]) -> dict[str, str]:
    return {_CONSUMER_RENAMED.get(name, name): value for name, value in config.items() if name not in _CONSUMER_WITHOUT_MEANING}


def check_consumer_config(values: Values) -> Iterator[Problem]:
    """As :func:`check_config`, plus the settings that the client itself refuses."""
    problems = list(check_config(values))
    yield from problems
    refused = {problem.option for problem in problems}
    for option, value in values.extra.items():
        if option not in refused and (reason := _client_refusal({option: value})) is not None:
            yield Problem(option, f"is not taken by the Kafka client: {reason} Got {redacted(option, value)}.")


def _client_refusal(option: Mapping[str, str]) -> str | None:
    """Why the client does not know a setting or its value; ``None`` if it does."""
    config = _translated(client_config(Values({}, frozenset(), option)))
    config.pop("security.protocol", None)  # it needs other settings too
    try:
        api = client()
    except ConnectorError:  # the query's error says what to install
        return None
    try:
        api.Consumer({**config, "group.id": "check", "log_level": "0"}).close()
    except api.KafkaException as refused:
        text = str(refused.args[0].str())
        return f"{text}." if text.startswith(("No such configuration", "Invalid value")) else None
    return None


def topic_dataset(config: Mapping[str, str], topic: str) -> Dataset:
    """The dataset of a topic of the cluster whose first broker ``config`` names."""
    return of_server("kafka", config["bootstrap.servers"].split(",")[0].strip(), topic, 9092)
