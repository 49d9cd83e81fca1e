"""The queries of this system that are killed: see :mod:`tests.systems.pipelines`."""

from __future__ import annotations

from connectors.testing.sink_cases import SinkQuery

from ..pipelines import CopyContext, Pipeline, Pipelines
from ..reference_contexts import FilesContext, FileStreamContext
from .contexts import (
    BucketedContext,
    FinishedContext,
    HdfsContext,
    RollingContext,
    RollingHdfsContext,
    RollingS3Context,
    S3Context,
    SealingContext,
)
from .test_source import FilesSourceContext

PIPELINES: Pipelines = {
    "rolling files": Pipeline(RollingContext, "foreach_batch"),
    "rolling buckets": Pipeline(BucketedContext, "format"),
    "finished folders": Pipeline(FinishedContext, "foreach_batch"),
    "rolling files on S3": Pipeline(RollingS3Context, "format"),
    "files on HDFS": Pipeline(HdfsContext, "format"),
    "rolling files on HDFS": Pipeline(RollingHdfsContext, "foreach_batch"),
    "copy of files": Pipeline(CopyContext, "foreach_batch", FilesSourceContext),
    "copy of lines": Pipeline(CopyContext, "format", FileStreamContext),
}
QUICK = ()
SCHEDULES = dict.fromkeys(
    (
        FilesContext,
        RollingContext,
        BucketedContext,
        FinishedContext,
        SealingContext,
        S3Context,
        RollingS3Context,
        HdfsContext,
        RollingHdfsContext,
    ),
    SinkQuery,
)
