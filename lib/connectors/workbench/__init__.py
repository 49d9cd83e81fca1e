"""Everything a notebook needs around Spark, the same in Jupyter, in the local job runner and in a workspace.

:func:`session` gives the Spark session, :func:`launch` starts a query until it runs, :func:`wait` shows a query until
its rows can be seen, :func:`notebook` is what the bootstrap cell needs, :func:`display` shows tables and figures,
:func:`figure` draws a figure, :class:`DbUtils` is ``dbutils`` outside a workspace, :func:`pipeline` is what a
pipeline's parameters say, :func:`together` runs several of them in one session, :func:`demo` is a system with sample
records, :func:`workdir` the folder for a notebook's data, :func:`fresh_folder` an empty one in it, :func:`postgres` a
database to try things on, :func:`opensearch` a search engine, :func:`kafka` a broker, :func:`redis` a Redis,
:func:`cassandra` a Cassandra, :func:`pubsub` a Pub/Sub, :func:`kinesis` a Kinesis, :func:`aws` other services of AWS,
:func:`api_service` a REST API, :func:`queue_service` a message queue and :func:`document_service` a document store,
both over HTTP.
"""

from .bootstrap import BOOTSTRAP, notebook
from .pipeline import Pipeline, pipeline
from .plots import COLOURS, figure
from .servers import (
    ServerAddress,
    api_service,
    aws,
    cassandra,
    cassandra_server,
    demo,
    document_service,
    kafka,
    kafka_server,
    kinesis,
    opensearch,
    opensearch_server,
    postgres,
    postgres_server,
    pubsub,
    queue_service,
    redis,
)
from .settings import fresh_folder, workdir
from .shim import DbUtils, NotebookExit, display, display_html
from .start import session
from .together import together
from .waiting import Summary, launch, wait

__all__ = [
    "BOOTSTRAP",
    "COLOURS",
    "DbUtils",
    "NotebookExit",
    "Pipeline",
    "ServerAddress",
    "Summary",
    "api_service",
    "aws",
    "cassandra",
    "cassandra_server",
    "demo",
    "display",
    "display_html",
    "document_service",
    "figure",
    "fresh_folder",
    "kafka",
    "kafka_server",
    "kinesis",
    "launch",
    "notebook",
    "opensearch",
    "opensearch_server",
    "pipeline",
    "postgres",
    "postgres_server",
    "pubsub",
    "queue_service",
    "redis",
    "session",
    "together",
    "wait",
    "workdir",
]
