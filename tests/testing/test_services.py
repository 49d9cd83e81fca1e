"""The queue and the document store of the test kit, and what the templates' connectors make of their outages."""

from __future__ import annotations

import threading
import time
import urllib.error
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pyarrow as pa
import pytest

from connectors.core import CommitRefused, Fatal
from connectors.core.ledger import Entry
from connectors.testing import SourceContext, same_records
from connectors.testing.servers import DocumentService, QueueService
from connectors.testing.source_suite import SourceQuery
from connectors.workbench.settings import library
from tests.servers import required

pytestmark = pytest.mark.server
SCHEMA = pa.schema([("id", pa.string()), ("body", pa.string())])


@pytest.fixture(scope="module")
def queue() -> QueueService:
    return required(QueueService)


@pytest.fixture(scope="module")
def store() -> DocumentService:
    return required(DocumentService)


@pytest.fixture
def own_queue() -> Iterator[QueueService]:
    """A service that a test may kill."""
    with QueueService() as service:
        yield service


def classes(template: str) -> dict[str, Any]:
    """What the cells of a template's client and connector define."""
    notebook = nbformat.read(library().parent / "notebooks" / "templates" / f"{template}.ipynb", as_version=4)
    names: dict[str, Any] = {"__name__": template}
    for cell in notebook.cells:
        if {"system", "connector"} & set(cell.metadata.get("tags", ())):
            exec(cell.source, names)
    return names


def bodies(service: QueueService, queue: str, count: int = 10, lease: float = 30.0) -> list[str]:
    messages = service.call(f"queues/{queue}/receive", count=count, wait=0, lease=lease)["messages"]
    return [message["body"] for message in messages]


def test_a_message_keeps_its_text_and_comes_again_when_its_lease_ends(queue: QueueService) -> None:
    queue.publish("leases", ["7", "seven"])
    assert bodies(queue, "leases", lease=0.05) == ["7", "seven"]
    time.sleep(0.06)
    assert bodies(queue, "leases") == ["7", "seven"]
    assert bodies(queue, "leases") == []
    assert queue.count("leases") == (0, 2)


def test_a_queue_outlives_its_process(own_queue: QueueService) -> None:
    own_queue.publish("orders", ["1"])
    own_queue.kill()
    own_queue.relaunch()
    assert bodies(own_queue, "orders") == ["1"]


def test_a_queue_delivers_twice_and_forgets_acknowledgements_when_it_is_told_to(own_queue: QueueService) -> None:
    own_queue.behave(duplicate=1.0, forget=1.0)
    own_queue.publish("orders", ["1", "2"])
    messages = own_queue.call("queues/orders/receive", count=1, wait=0, lease=30)["messages"]
    own_queue.call("queues/orders/acknowledge", leases=[message["lease"] for message in messages])
    assert bodies(own_queue, "orders") == ["2", "1"]


@pytest.mark.parametrize("call", ["receive", "../secrets/receive", "nothing"])
def test_a_bad_call_is_refused(queue: QueueService, call: str) -> None:
    with pytest.raises(urllib.error.HTTPError, match=r"400|404"):
        queue.call(f"queues/orders/{call}")


def test_a_transaction_of_documents_is_whole_or_nothing(store: DocumentService) -> None:
    insert = {"insert": "whole", "documents": [{"id": 1}]}
    store.call("transaction", operations=[insert, {"put": "keys", "key": "a", "document": {"n": 1}, "expected": None}])
    for refused in (
        {"put": "keys", "key": "a", "document": {"n": 2}, "expected": None},
        {"move": "whole", "to": "other", "count": 7},
        {"unknown": "operation"},
    ):
        with pytest.raises(urllib.error.HTTPError, match=r"409|400"):
            store.call("transaction", operations=[insert, refused])
    assert store.documents("whole") == [{"id": 1}]
    store.call("transaction", operations=[{"move": "whole", "to": "moved", "count": 1}, {"drop": "keys"}])
    assert (store.documents("whole"), store.documents("moved"), store.documents("keys")) == ([], [{"id": 1}], [])


def test_a_source_over_a_queue_bridges_an_outage_of_the_service(own_queue: QueueService, tmp_path: Path) -> None:
    names = classes("queue")
    url = f"{own_queue.url}/queues/orders"

    class Orders(SourceContext):
        source = names["QueueSource"]
        schema = SCHEMA

        def options(self) -> dict[str, str]:
            return {"url": url, "stateLocation": str(tmp_path / "log"), "pollInterval": "20ms", "drainTimeout": "20ms"}

        def write(self, count: int) -> list[dict[str, Any]]:
            ids = own_queue.call("queues/orders/publish", bodies=[str(number) for number in range(count)])["ids"]
            return [{"id": id, "body": str(number)} for number, id in enumerate(ids)]

    system = Orders(tmp_path)
    query, log = SourceQuery(system, maxRowsPerTrigger="5", outageTimeout="30s"), list[Any]()
    written = system.write(20)
    rows = query.next(log) or []
    own_queue.kill()
    rest = threading.Thread(target=lambda: rows.extend(query.rest(log)))
    rest.start()
    rest.join(1.0)
    assert rest.is_alive(), "the query waits for the service"
    own_queue.relaunch()  # here: a server ends with the thread that has started it
    rest.join(30)
    same_records(written, rows)
    query.planner.close()
    assert own_queue.count("orders")[1] == 0


def test_an_error_for_good_is_no_outage(queue: QueueService) -> None:
    client = classes("queue")["QueueClient"](f"{queue.url}/queues/orders")
    with pytest.raises(Fatal, match="answers 404 to nothing"):
        client.call("nothing")


def test_of_two_commits_of_a_batch_one_comes_through(store: DocumentService, monkeypatch: pytest.MonkeyPatch) -> None:
    committer = classes("storage")["StorageCommitter"](store.url, "race", "sink", 0.0)
    slower = classes("storage")["StorageCommitter"](store.url, "race", "sink", 0.0)
    entries = slower.entries()
    monkeypatch.setattr(slower, "entries", lambda: entries)  # it has looked before the other one wrote
    committer.commit(Entry("query", 0, 0), [])
    with pytest.raises(CommitRefused, match="another document by now"):
        slower.commit(Entry("query", 0, 0), [])
    assert committer.last("query").batch == 0
