"""The ``kafka.*`` options as the client takes them: Java's names and values where they differ are translated, or refused."""

from __future__ import annotations

import contextlib
import importlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, Final

from ...core.errors import ConnectorError, DataLoss, Fatal, Misconfigured, Problem, Transient
from ...core.options import Values, redacted

PREFIX: Final = "kafka."

_PEM: Final = "is a Java key store; give PEM files, by kafka.ssl.ca.location, kafka.ssl.certificate.location and so on."
_OF_JAVA: Final = "names a Java class; keys and values are bytes here, made by key.format and value.format."
_REFUSED: Final = {
    **dict.fromkeys(("key.serializer", "value.serializer", "key.deserializer", "value.deserializer"), _OF_JAVA),
    **dict.fromkeys(
        ("interceptor.classes", "partitioner.class", "sasl.login.callback.handler.class"), "names a Java class."
    ),
    **{f"ssl.{store}.{part}": _PEM for store in ("truststore", "keystore") for part in ("location", "type")},
}
_JAAS: Final = "sasl.jaas.config"
_LOGIN: Final = re.compile(r'\b(username|password)\s*=\s*"((?:[^"\\]|\\.)*)"')
_MODULES: Final = ("PlainLoginModule", "ScramLoginModule")

_RENAMED: Final[dict[str, tuple[str, Callable[[str], str]]]] = {
    "max.request.size": ("message.max.bytes", str),
    "buffer.memory": ("queue.buffering.max.kbytes", lambda value: str(max(1, int(value) // 1024))),
    "delivery.timeout.ms": ("message.timeout.ms", str),
    "ssl.keystore.key": ("ssl.key.pem", str),
    "ssl.keystore.certificate.chain": ("ssl.certificate.pem", str),
    "ssl.truststore.certificates": ("ssl.ca.pem", str),
    "ssl.endpoint.identification.algorithm": ("ssl.endpoint.identification.algorithm", lambda value: value or "none"),
    "acks": ("acks", lambda value: "all" if value == "-1" else value),
}
_WITHOUT_MEANING: Final = frozenset({"max.block.ms", "client.dns.lookup", "metadata.max.idle.ms", "security.providers"})


def client_config(values: Values) -> dict[str, str]:
    """The options that are passed through, under the client's names."""
    config: dict[str, str] = {}
    for name, value in _given(values):
        if name == _JAAS:
            login = {key: text.replace('\\"', '"') for key, text in _LOGIN.findall(value)}
            config.update({f"sasl.{key}": text for key, text in login.items()})
        elif name not in _WITHOUT_MEANING:
            to, convert = _RENAMED.get(name, (name, str))
            config[to] = convert(value)
    return {"log_level": "2", **config}  # outages are told as errors; the client would also print each of them


def check_config(values: Values) -> Iterator[Problem]:
    """The problems of ``kafka.*`` options that can be seen without a broker."""
    given = dict(_given(values))
    if not given.get("bootstrap.servers"):
        yield Problem(
            "kafka.bootstrap.servers", 'missing; give brokers as host:port, such as "broker-1:9092,broker-2:9092".'
        )
    for name, value in given.items():
        if name in _REFUSED:
            yield Problem(PREFIX + name, _REFUSED[name])
        if name == _JAAS and not (any(module in value for module in _MODULES) and len(_LOGIN.findall(value)) >= 2):
            text = (
                f"must be a {' or '.join(_MODULES)} with username and password; or give kafka.sasl.username and so on."
            )
            yield Problem(PREFIX + name, text)
    if "gssapi" in given.get("sasl.mechanism", given.get("sasl.mechanisms", "")).lower():
        text = "GSSAPI (Kerberos) is not in the Python client; take PLAIN, SCRAM or OAUTHBEARER."
        yield Problem("kafka.sasl.mechanism", text)


def _given(values: Values) -> list[tuple[str, str]]:
    return [(name.removeprefix(PREFIX), value) for name, value in values.extra.items() if name.startswith(PREFIX)]


_CONNECTION: Final = (
    "bootstrap.servers", "client.id", "security.protocol", "sasl.", "ssl.", "socket.", "broker.", "log_level", "enable.ssl",
    "reconnect.", "connections.", "api.version", "metadata.", "debug", "https.", "retry.backoff",
)  # fmt: skip


def connection_config(config: Mapping[str, str]) -> dict[str, str]:
    """Without what only a producer or a consumer knows."""
    return {key: value for key, value in config.items() if key.startswith(_CONNECTION)}


def producer_config(config: Mapping[str, str], smallest: int, heard: Any, delivered: Any) -> dict[str, Any]:
    """Kafka's own partitioning, and batches of at most ``smallest`` bytes; the user's settings win.

    A topic refuses a batch that is larger than its largest record, whatever is in it.
    """
    ours = {
        "partitioner": "murmur2_random",
        "linger.ms": "20",
        "batch.size": str(min(1_000_000, smallest)),
        "message.max.bytes": "1000000000",  # what a topic takes is checked record by record
        "queue.buffering.max.messages": "500000",
        "queue.buffering.max.kbytes": "262144",
        "delivery.report.only.error": True,
        "enable.idempotence": "true",
    }
    return {**ours, **config, "error_cb": heard, "on_delivery": delivered}


# MERGED What of ``kafka.*`` concerns a consumer: Spark's names of the Java client, translated, refused, or tried out.

_CONSUMER_RENAMED: Final[Mapping[str, str]] = {
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    "max.partition.fetch.bytes": "fetch.message.max.bytes",
    "request.timeout.ms": "socket.timeout.ms",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "send.buffer.bytes": "socket.send.buffer.bytes",
}
_CONSUMER_WITHOUT_MEANING: Final = frozenset(
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
    return {_CONSUMER_RENAMED.get(name, name): value for name, value in config.items() if name not in _CONSUMER_WITHOUT_MEANING}


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


# MERGED What an error of the Kafka client means here: an outage, lost data, or something that a person must change.

_INSTALL: Final = "confluent-kafka>=2.6"
_LOST: Final = frozenset({"OFFSET_OUT_OF_RANGE", "_AUTO_OFFSET_RESET", "_LOG_TRUNCATION"})
_FOR_A_PERSON: Final = frozenset(
    {
        "_AUTHENTICATION",
        "SASL_AUTHENTICATION_FAILED",
        "_SSL",
        "UNSUPPORTED_SASL_MECHANISM",
        "ILLEGAL_SASL_STATE",
        "TOPIC_AUTHORIZATION_FAILED",
        "GROUP_AUTHORIZATION_FAILED",
        "CLUSTER_AUTHORIZATION_FAILED",
        "_UNSUPPORTED_FEATURE",
        "UNSUPPORTED_VERSION",
        "_INVALID_ARG",
        "INVALID_GROUP_ID",
    }
)


def client(module: str = "confluent_kafka") -> Any:
    """The client library. Raises ``Misconfigured`` with what to install when it is not here."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as missing:
        text = f"needs a package that is not here ({missing.name}); pip install '{_INSTALL}'."
        raise Misconfigured("connectors.kafka", [Problem("format", text)]) from None


def error_of(error: BaseException) -> str:
    """The name of a client's error, such as ``UNKNOWN_TOPIC_OR_PART``; empty for another exception."""
    inner: Any = error.args[0] if error.args else None
    return str(inner.name()) if hasattr(inner, "name") else ""


def meaning(name: str, text: str, what: str) -> ConnectorError:
    """The error to raise for the client's error ``name``; ``what`` says what could not be done."""
    if name in _LOST:
        return DataLoss(f"{what}: {text}")
    if name in _FOR_A_PERSON:
        return Fatal(f"{what}: {text}", way_out="see the kafka.* options, and the rights of the user that they name")
    return Transient(f"{what}: {text}")


@contextlib.contextmanager
def failed(what: str) -> Iterator[None]:
    """Turns the client's errors into ours."""
    try:
        yield
    except (FutureTimeout, TimeoutError) as error:
        raise Transient(f"{what}: no answer in time") from error
    except client().KafkaException as error:
        raise meaning(error_of(error), error.args[0].str(), what) from None


# MERGED What an error of a producer means: whose turn it is, what a person must change, or an outage.

FENCED: Final = frozenset({"_FENCED", "INVALID_PRODUCER_EPOCH", "PRODUCER_FENCED", "CONCURRENT_TRANSACTIONS"})
_OPTIONS: Final = {
    "_INVALID_ARG": "kafka.*",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": "transactionalIdPrefix",
    "GROUP_AUTHORIZATION_FAILED": "sinkId",
    "TOPIC_AUTHORIZATION_FAILED": "topic",
    "UNKNOWN_TOPIC_OR_PART": "topic",
    "_UNKNOWN_TOPIC": "topic",
    "_AUTHENTICATION": "kafka.sasl.*",
    "_SSL": "kafka.ssl.*",
}


class Fenced(Transient):
    """Another attempt at the same batch, or another run of the query, has taken over: the ledger tells what it did."""


class Stuck(Transient):
    """The client waits for a broker that does not come back to it. A new client finds its way."""


def explained(error: Any, what: str, told: Sequence[tuple[str, str]] = ()) -> ConnectorError:
    """The error to raise for a ``KafkaException``; ``told`` are what the client reported meanwhile, the cause too."""
    name, text = error_of(error), error.args[0].str()
    if name in FENCED:
        return Fenced(f"{what}: another attempt or another run has taken over")
    for cause, said in [(name, text), *reversed(told)]:
        if cause in _OPTIONS:
            return Misconfigured("connectors.kafka", [Problem(_OPTIONS[cause], f"{what}: {said}")])
    said = f"{text} ({told[-1][1]})" if told else text
    found = meaning(name, said, what)
    return Fatal(found.message) if name == "MSG_SIZE_TOO_LARGE" else found
