"""The ``kafka.*`` options as the client takes them: Java's names and values where they differ are translated, or refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from ...core.errors import Problem
from ...core.options import Values

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
