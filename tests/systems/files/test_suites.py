"""The sink passes every case of the kit, however its files roll and wherever they lie."""

from __future__ import annotations

from connectors.testing import SinkSuite

from .contexts import (
    BucketedContext,
    HdfsContext,
    RollingContext,
    RollingHdfsContext,
    RollingS3Context,
    S3Context,
    SealingContext,
)


class TestRolling(SinkSuite):
    context = RollingContext


class TestBucketed(SinkSuite):
    context = BucketedContext


class TestSealing(SinkSuite):
    context = SealingContext


class TestS3(SinkSuite):
    context = S3Context


class TestRollingS3(SinkSuite):
    context = RollingS3Context


class TestHdfs(SinkSuite):
    context = HdfsContext


class TestRollingHdfs(SinkSuite):
    context = RollingHdfsContext
