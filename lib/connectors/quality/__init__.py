"""Data quality: define a check once, and use it on rows before they are written and on the output afterwards.

::

    checks = quality.Checks([quality.not_null("id"), quality.unique("id"), quality.between("delay", -60, 1500)])

    good, quarantined = checks.split(df)                                      # rows, by a Spark predicate
    stream.writeStream.foreachBatch(checks.foreach_batch(good=…, quarantined=…))
    checks.validate(spark.read.table("orders"), name="orders").enforce()      # the output, by Great Expectations
    quality.enforce(report, quality.claims(spark, {"no order twice": twice == 0}))       # several at once

    checks = quality.rules('[{"not_null": "id"}, {"unique": ["id"]}]')        # the same as data: JSON, or a file of it

Both uses give the same answer for the same rows. All of it is DataFrame API, so it runs on Spark Connect too.
"""

from .check import Check
from .define import between, expression, fresh, in_set, matches, not_null, row_count, unique
from .report import CheckOutcome, QualityFailed, Report, enforce
from .rules import rules, rules_by_table
from .suite import FAILED_CHECKS, BatchCounts, Checks, Sink, SplitBatch, SplitFrames, claims

__all__ = [
    "FAILED_CHECKS",
    "BatchCounts",
    "Check",
    "CheckOutcome",
    "Checks",
    "QualityFailed",
    "Report",
    "Sink",
    "SplitBatch",
    "SplitFrames",
    "between",
    "claims",
    "enforce",
    "expression",
    "fresh",
    "in_set",
    "matches",
    "not_null",
    "row_count",
    "rules",
    "rules_by_table",
    "unique",
]
