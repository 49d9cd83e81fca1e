"""Pub/Sub beside its client: python tests/benchmarks/bench_pubsub.py [messages]

Goal: the source reads at 0.8 of a loop of pull, extension of the deadline and acknowledgement by Google's client, with as many
messages to a request, with one task and into ``noop``. Messages have 100 bytes. The pair runs by turns; the server is the fake
of Google's own tests, built by Go.
"""

from __future__ import annotations

import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

from figures import figure
from google.pubsub_v1 import SubscriberClient
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport

from connectors import workbench
from connectors.testing.servers import PubSubServer

ROUNDS, EPOCH, PULL = 3, 50_000, 1000


def subscription(server: PubSubServer, count: int) -> str:
    """The id of a new subscription with so many messages."""
    from tests.systems.pubsub.contexts import Topic

    topic = Topic(server, ack_deadline_seconds=60)
    topic.publish([{"data": b"x" * 100, "attributes": {"kind": "order"}}] * count)
    topic.close()
    return str(topic.id)


def plain(server: PubSubServer, id: str, count: int) -> float:
    """Messages per second; those of a request are decoded and dropped."""
    import grpc

    client: Any = SubscriberClient(transport=SubscriberGrpcTransport(channel=grpc.insecure_channel(server.endpoint)))
    name, read, began = f"projects/connectors/subscriptions/{id}", 0, time.perf_counter()
    while read < count:
        request = {"subscription": name, "max_messages": PULL, "return_immediately": True}
        received = client.pull(request=request).received_messages
        ids = [message.ack_id for message in received]
        client.modify_ack_deadline(subscription=name, ack_ids=ids, ack_deadline_seconds=60)
        client.acknowledge(subscription=name, ack_ids=ids)
        read += len([message.message.data for message in received])
    return count / (time.perf_counter() - began)


def our_source(spark: Any, server: PubSubServer, id: str) -> float:
    """Messages per second of batches from planning to commit, without the first, which starts Python."""
    with tempfile.TemporaryDirectory() as folder:
        options = {"projectId": "connectors", "endpoint": server.endpoint, "subscriptionId": id, "drainTimeout": "100ms"}
        options |= {"stateLocation": f"{folder}/log", "maxRowsPerTrigger": str(EPOCH)}
        rows = spark.readStream.format("connectors.pubsub").options(**options).load()
        writer = rows.writeStream.format("noop").option("checkpointLocation", str(Path(folder) / "checkpoint"))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        batches = [batch for batch in query.recentProgress if batch["numInputRows"]][1:]
        seconds = sum(batch["durationMs"]["triggerExecution"] for batch in batches) / 1000
        return float(sum(batch["numInputRows"] for batch in batches) / seconds)


def main() -> None:
    warnings.filterwarnings("ignore", "The return_immediately flag")
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 150_000
    spark = workbench.session(master="local[1]")
    rates: dict[str, list[float]] = {"plain": [], "ours": []}
    for _ in range(ROUNDS):
        with PubSubServer() as server:
            rates["plain"].append(plain(server, subscription(server, count), count))
        with PubSubServer() as server:
            rates["ours"].append(our_source(spark, server, subscription(server, count)))
    figure("Pub/Sub → Spark", "messages/s", rates["ours"], "Google's client", rates["plain"], least=0.8)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    main()
