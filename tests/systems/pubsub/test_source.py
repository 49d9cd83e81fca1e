"""The source of Pub/Sub: acknowledgement, redelivery, ordering keys, filters, errors, and gRPC after forks only."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from connectors.core import Fatal, Misconfigured, Transient
from connectors.systems.pubsub import PubSubSource
from connectors.systems.pubsub.connection import PubSubClient
from connectors.testing.servers import PubSubServer
from connectors.testing.session import python_path
from connectors.testing.source_suite import SourceQuery
from tests.servers import required

from .contexts import PROJECT, SubscriptionContext

pytestmark = [pytest.mark.server, pytest.mark.filterwarnings("ignore:The return_immediately flag:DeprecationWarning")]


class OrderedContext(SubscriptionContext):
    settings = {"enable_message_ordering": True}  # noqa: RUF012


class FilteredContext(SubscriptionContext):
    settings = {"filter": 'attributes.kind = "odd"'}  # noqa: RUF012


@pytest.fixture(params=[SubscriptionContext])
def system(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SubscriptionContext]:
    folder = tmp_path / "system"
    folder.mkdir()
    context = request.param(folder)
    yield context
    context.close()


def numbers(rows: list[dict[str, Any]] | None) -> list[int]:
    return [int(row["data"]) for row in rows or []]


def test_the_data_is_decoded_and_bad_messages_are_set_aside_once(system: SubscriptionContext, tmp_path: Path) -> None:
    datas = (b'{"id": 1, "name": "x"}', b"no json", b'{"id": 3, "name": "z"}', b'{"id": "four"}')
    ids = system.topic.publish([{"data": data} for data in datas])
    options = {"value.format": "json", "schema": "id long, name string"}
    letters = {"errors": "deadLetter", "deadLetterPath": str(tmp_path / "letters")}
    data = pa.struct([("id", pa.int64()), ("name", pa.string())])
    system.schema = pa.schema([("data", data), ("orderingKey", pa.string())])  # type: ignore[misc]
    query = SourceQuery(system, **options, **letters)
    assert str(query.source.schema).startswith("data struct<id long, name string>, attributes map")
    log: list[Any] = []
    assert query.plan(log) is not None
    for _ in range(2):
        assert sorted(row["data"]["id"] for row in query.batch(log, 0)) == [1, 3]
    table = pa.concat_tables(pq.read_table(file) for file in (tmp_path / "letters").glob("*.parquet"))
    assert sorted(table["record"].to_pylist()) == [b"no json", b'{"id": "four"}']
    assert sorted(json.loads(where)["messageId"] for where in table["position"].to_pylist()) == sorted([ids[1], ids[3]])


def test_a_message_is_acknowledged_after_its_batch_and_not_before(system: SubscriptionContext) -> None:
    system.write(5)
    query, log = SourceQuery(system), []
    assert sorted(numbers(query.next(log))) == [0, 1, 2, 3, 4]
    source: Any = query.source
    receiver = source.receiver(None)
    receiver.open()
    receiver.release(source.log().leases(1)[0])
    assert len(system.topic.pull()) == 5  # and they are acknowledged now, as the epoch's are below: no error
    query.planner.latest(log[-1])
    receiver.close()


def test_what_is_delivered_again_is_left_out_and_acknowledged(system: SubscriptionContext) -> None:
    system.write(5)
    log: list[Any] = []
    query = SourceQuery(system)
    rows = query.next(log)
    source: Any = query.source
    receiver = source.receiver(None)
    receiver.open()
    receiver.release(source.log().leases(1)[0])
    acknowledge = type(receiver).acknowledge
    try:
        type(receiver).acknowledge = lambda *_: None  # the acknowledgement is lost
        again = SourceQuery(system).rest(log)
    finally:
        type(receiver).acknowledge = acknowledge
    receiver.close()
    assert sorted(numbers(rows)) == [0, 1, 2, 3, 4]
    assert again == []


@pytest.mark.parametrize("system", [OrderedContext], indirect=True)
@pytest.mark.parametrize("readers", ["1", "3"])
def test_messages_of_a_key_come_in_their_order(system: SubscriptionContext, readers: str) -> None:
    system.topic.publish([{"data": b"%d" % number, "ordering_key": f"key-{number % 3}"} for number in range(60)])
    log: list[Any] = []
    rows: list[dict[str, Any]] = []
    query = SourceQuery(system, numPartitions=readers, maxRowsPerTrigger="20")
    while batch := query.next(log):
        rows += batch
    for key in range(3):
        own = [int(row["data"]) for row in rows if row["orderingKey"] == f"key-{key}"]
        assert own == list(range(key, 60, 3))


@pytest.mark.parametrize("system", [FilteredContext], indirect=True)
def test_a_filter_is_that_of_the_subscription(system: SubscriptionContext) -> None:
    system.write(10)
    assert sorted(numbers(SourceQuery(system).rest([]))) == [1, 3, 5, 7, 9]


def test_a_subscription_that_does_not_exist_is_named_at_once(tmp_path: Path) -> None:
    endpoint = required(PubSubServer).endpoint
    options = {"projectId": PROJECT, "endpoint": endpoint, "subscriptionId": "nobody", "stateLocation": str(tmp_path)}
    begin = time.monotonic()
    with pytest.raises(Fatal, match="projects/connectors/subscriptions/nobody does not exist"):
        PubSubSource.of(options, streaming=True).begin()
    assert time.monotonic() - begin < 5


def test_an_endpoint_that_does_not_answer_is_an_outage(tmp_path: Path) -> None:
    options = {"projectId": PROJECT, "endpoint": "127.0.0.1:1", "subscriptionId": "s", "stateLocation": str(tmp_path)}
    begin = time.monotonic()
    with pytest.raises(Transient, match="Pub/Sub does not answer"):
        PubSubSource.of(options, streaming=True).begin()
    assert time.monotonic() - begin < 10


@contextlib.contextmanager
def refusals(reason: str) -> Iterator[str]:
    """A service that refuses all acknowledgement ids for ``reason``, as one with exactly-once delivery does; its address."""
    import grpc
    from google.protobuf.any_pb2 import Any as Packed
    from google.pubsub_v1.types import AcknowledgeRequest, ModifyAckDeadlineRequest
    from google.rpc import code_pb2, error_details_pb2, status_pb2
    from grpc_status import rpc_status

    def refuse(request: Any, call: Any) -> None:
        detail = Packed()
        detail.Pack(error_details_pb2.ErrorInfo(reason="x", metadata=dict.fromkeys(request.ack_ids, reason)))
        status = status_pb2.Status(code=code_pb2.FAILED_PRECONDITION, message="ids", details=[detail])
        call.abort_with_status(rpc_status.to_status(status))

    types = {"Acknowledge": AcknowledgeRequest, "ModifyAckDeadline": ModifyAckDeadlineRequest}
    handlers = {
        name: grpc.unary_unary_rpc_method_handler(refuse, request_deserializer=kind.deserialize) for name, kind in types.items()
    }
    server = grpc.server(ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("google.pubsub.v1.Subscriber", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None)


def test_ids_of_ended_leases_are_no_error_and_an_outage_of_acknowledgement_is(tmp_path: Path) -> None:
    for reason in ("PERMANENT_FAILURE_INVALID_ACK_ID", "TRANSIENT_FAILURE_UNAVAILABLE", "OTHER"):
        with refusals(reason) as endpoint:
            options = {"projectId": PROJECT, "endpoint": endpoint, "subscriptionId": "s", "stateLocation": str(tmp_path)}
            receiver = PubSubSource.of(options, streaming=True).receiver(None)
            receiver.open()
            expected = {"T": pytest.raises(Transient), "O": pytest.raises(Fatal)}.get(reason[0], contextlib.nullcontext())
            for call in (receiver.acknowledge, receiver.extend, receiver.release):
                with expected:
                    call(["id-1", "id-2"])
            receiver.close()


def test_missing_and_wrong_credentials_are_named_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"projectId": PROJECT, "subscriptionId": "s", "stateLocation": str(tmp_path)}
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "nowhere.json"))
    for secret, text in (({}, "nowhere.json"), ({"credentialsSecret": '{"type": "service_account"}'}, "client_email")):
        with pytest.raises(Fatal, match=rf"(?s)no credentials: .*{text}.*Way out: .*credentialsSecret"):
            PubSubSource.of({**options, **secret}, streaming=True).begin()


def test_credentials_that_the_service_refuses_are_no_outage(tmp_path: Path) -> None:
    options = {"projectId": PROJECT, "endpoint": "127.0.0.1:1", "subscriptionId": "s"}
    source = PubSubSource.of({**options, "stateLocation": str(tmp_path)}, streaming=True)
    client = PubSubClient("connectors.pubsub", source.values, "subscriber")
    from google.api_core.exceptions import ServiceUnavailable

    answer = "Getting metadata from plugin failed with error: ('invalid_grant: Invalid JWT Signature.', {})"
    with pytest.raises(Fatal, match="accepts no credentials"), client.errors("s"):
        raise ServiceUnavailable(answer)
    client.close()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"ackDeadline": "5s"}, r"ackDeadline +must be 10s to 10 minutes"),
        ({"endpoint": "localhost"}, r"endpoint +must be host:port"),
        ({"credentialsSecret": "no JSON"}, r"credentialsSecret +must be the JSON"),
    ],
)
def test_wrong_options_are_named(tmp_path: Path, options: dict[str, str], text: str) -> None:
    with pytest.raises(Misconfigured, match=text) as error:
        PubSubSource.of({"projectId": "p", "subscriptionId": "s", "stateLocation": str(tmp_path), **options}, streaming=True)
    assert "no JSON" not in str(error.value)


def test_grpc_is_not_loaded_before_a_client_is_opened() -> None:
    program = (
        "import sys\n"
        "from connectors.systems.pubsub import PubSubSink, PubSubSource\n"
        "source = PubSubSource.of({'projectId': 'p', 'subscriptionId': 's', 'stateLocation': '/tmp/x'}, streaming=True)\n"
        "source.enumerator(); source.reader(None); source.receiver(None)\n"
        "print('grpc' in sys.modules)\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env={"PYTHONPATH": python_path()})
    assert ran.stdout == "False\n", ran.stderr
