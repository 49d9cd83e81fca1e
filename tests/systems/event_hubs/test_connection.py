"""What follows from a connection string, and what is told about one that cannot work; without a server."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from connectors.core import Guarantee, Misconfigured
from connectors.systems.event_hubs import EventHubsSink, EventHubsSource
from connectors.systems.event_hubs.connection import ConnectionString

KEY = "c2VjcmV0LWtleQ=="
STRING = f"Endpoint=sb://flights.servicebus.windows.net/;SharedAccessKeyName=reader;SharedAccessKey={KEY}"
HUB = {"connectionString": STRING, "eventHub": "departures"}


def source(**typed: str) -> EventHubsSource:
    hub_source = EventHubsSource.of(_dotted(typed), streaming=True)
    assert isinstance(hub_source, EventHubsSource)
    return hub_source


def sink(**typed: str) -> EventHubsSink:
    hub_sink = EventHubsSink.of(_dotted(typed))
    assert isinstance(hub_sink, EventHubsSink)
    return hub_sink


def _dotted(typed: dict[str, str]) -> dict[str, Any]:
    return {name.replace("__", "."): value for name, value in typed.items()}


DERIVED = {
    "bootstrap.servers": "flights.servicebus.windows.net:9093",
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "$ConnectionString",
    "sasl.password": STRING,
    "metadata.max.age.ms": "180000",
    "connections.max.idle.ms": "180000",
    "socket.keepalive.enable": "true",
}


def test_a_source_needs_a_connection_string_and_an_event_hub() -> None:
    hub_source = source(**HUB)
    assert DERIVED.items() <= hub_source.config().items()
    assert hub_source.values["subscribe"] == ("departures",)


def test_a_sink_also_keeps_to_what_the_service_takes_at_once() -> None:
    hub_sink = sink(**HUB)
    assert DERIVED.items() <= hub_sink.config().items()
    assert hub_sink.values["topic"] == "departures"
    assert 1_000_000 < int(hub_sink.config()["message.max.bytes"]) < 1_046_528
    assert hub_sink.guarantee() is Guarantee.AT_LEAST_ONCE


def test_the_entity_path_names_the_event_hub_and_stays_in_the_password() -> None:
    hub_source = source(connectionString=f"{STRING};EntityPath=arrivals")
    assert hub_source.values["subscribe"] == ("arrivals",)
    assert hub_source.config()["sasl.password"].endswith(";EntityPath=arrivals")
    assert sink(connectionString=f"{STRING};EntityPath=arrivals").values["topic"] == "arrivals"


def test_options_of_kafka_win_over_what_is_derived() -> None:
    typed = {"kafka__Bootstrap.Servers": "proxy:9999", "kafka__metadata.max.age.ms": "5000", "kafka__sasl.mechanisms": "PLAIN"}
    config = source(**HUB, **typed).config()
    assert (config["bootstrap.servers"], config["metadata.max.age.ms"]) == ("proxy:9999", "5000")
    assert "sasl.mechanism" not in config
    assert sink(**HUB, **{"kafka__max.request.size": "500000"}).config()["message.max.bytes"] == "500000"
    plain = source(**HUB, **{"kafka__security.protocol": "PLAINTEXT"}).config()
    assert not [name for name in plain if name.startswith("sasl")]


def test_a_login_in_javas_form_is_taken_instead() -> None:
    module = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    config = source(**HUB, **{"kafka__sasl.jaas.config": f'{module} username="me" password="hush";'}).config()
    assert (config["sasl.username"], config["sasl.password"]) == ("me", "hush")


def test_the_emulator_of_the_service_is_reached_without_tls() -> None:
    string = f"Endpoint=sb://localhost;SharedAccessKeyName=all;SharedAccessKey={KEY};UseDevelopmentEmulator=true;"
    config = source(connectionString=string, eventHub="hub").config()
    assert (config["bootstrap.servers"], config["security.protocol"]) == ("localhost:9092", "SASL_PLAINTEXT")


@pytest.mark.parametrize("kind", [EventHubsSource, EventHubsSink])
@pytest.mark.parametrize(
    ("string", "text"),
    [
        ("Endpoint=sb://flights.servicebus.windows.net/", "SharedAccessKeyName and SharedAccessKey"),
        (STRING.replace("Endpoint=sb://", "Endpoint="), "whose Endpoint is a URL"),
        (STRING.replace("reader", ""), "which has SharedAccessKeyName"),
        (KEY, "Endpoint and SharedAccessKeyName and SharedAccessKey"),
        ("{{secrets/nobody/knows}}", '"knows" of scope "nobody" is read from \\$SECRET_NOBODY_KNOWS'),
    ],
)
def test_a_string_that_is_none_is_one_problem_without_a_secret_in_it(kind: Any, string: str, text: str) -> None:
    with pytest.raises(Misconfigured, match=text) as refused:
        kind.of({**HUB, "connectionString": string})
    assert [problem.option for problem in refused.value.problems] == ["connectionString"]
    assert KEY not in str(refused.value)


@pytest.mark.parametrize(
    ("typed", "option", "text"),
    [
        ({"eventHub": "departures"}, "connectionString", "missing"),
        ({"connectionString": STRING}, "eventHub", "missing; name the event hub"),
        ({"connectionString": f"{STRING};EntityPath=arrivals", "eventHub": "x"}, "eventHub", 'for "arrivals"'),
        ({**HUB, "subscribePattern": "d.*"}, "eventHub", "beside subscribePattern"),
        ({**HUB, "eventhubs.consumerGroup": "x"}, "eventhubs.consumerGroup", "is no option of this source"),
    ],
)
def test_what_cannot_work_is_told_by_option(typed: dict[str, str], option: str, text: str) -> None:
    with pytest.raises(Misconfigured, match=text) as refused:
        EventHubsSource.of(typed, streaming=True)
    assert [problem.option for problem in refused.value.problems] == [option]
    assert KEY not in str(refused.value)


def test_a_reference_to_a_secret_is_resolved_where_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_EVENTS_FLIGHTS_READER", STRING)
    hub_source = source(connectionString="{{secrets/events/flights-reader}}", eventHub="departures")
    assert hub_source.config()["sasl.password"] == STRING
    assert hub_source.values["connectionString"].key_name == "reader"


def test_a_connection_string_shows_no_secret_and_travels_to_tasks() -> None:
    read = ConnectionString.parse(STRING)
    assert KEY not in repr(read)
    assert pickle.loads(pickle.dumps(read)) == read
    assert read.key == KEY, "a key may end with ="
