"""A service credential of Unity Catalog: where it comes from in each process, and what is said where it does not come."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from connectors.ground.errors import Misconfigured
from connectors.ground.identities import service_credential
from tests.fake_runtime import FakeRuntime

CONNECTOR, METHOD = "connectors.toy", "get_credentials"


def test_on_the_driver_dbutils_gives_it() -> None:
    with FakeRuntime({"orders": "aws"}).installed() as runtime:
        session = service_credential(CONNECTOR, "orders", METHOD)
        assert runtime.accepts(session.get_credentials().access_key)


def test_what_cannot_be_had_is_said_without_what_the_runtime_tells() -> None:
    with FakeRuntime({"orders": "aws", "entra": "azure"}).installed() as runtime:
        service_credential(CONNECTOR, "orders", METHOD)
        with pytest.raises(Misconfigured, match=r"databricks.serviceCredential +cannot be had on the driver") as error:
            service_credential(CONNECTOR, "other", METHOD)
        assert runtime.issued[0][0] not in str(error.value)
        with pytest.raises(Misconfigured, match=r"databricks.serviceCredential +names a credential of another cloud"):
            service_credential(CONNECTOR, "entra", METHOD)
    with pytest.raises(Misconfigured, match=r"cannot be had outside a Databricks workspace.*give a login by other"):
        service_credential(CONNECTOR, "orders", METHOD)


def test_in_a_task_the_module_of_the_tasks_gives_it(spark: Any) -> None:
    runtime = FakeRuntime({"orders": "aws"})

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with runtime.installed():
            keys = service_credential(CONNECTOR, "orders", METHOD).get_credentials()
            answers = [str(runtime.accepts(keys.access_key))]
            try:
                service_credential(CONNECTOR, "other", METHOD)
            except Misconfigured as error:
                answers.append(str(error))
        yield pa.RecordBatch.from_pydict({"answer": answers})

    rows = spark.range(0, 1, 1, 1).mapInArrow(task, "answer string").collect()
    assert rows[0].answer == "True"
    assert "cannot be had in a task" in rows[1].answer
