"""S3: what is put is put once, what is published is published once, and no credential is ever shown."""

from __future__ import annotations

import contextlib
import json
import re
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from botocore.client import BaseClient
from botocore.exceptions import ClientError

from connectors.core import Batch, Committable, Fatal, Misconfigured, Transient
from connectors.core.commit import Commit
from connectors.core.folder import SinkFolder
from connectors.core.ledger import Entry
from connectors.core.writing import stage
from connectors.storage import Storage
from connectors.storage import s3_bucket as module
from connectors.storage.s3 import S3Storage
from connectors.systems.files import FilesSink
from connectors.systems.files.rolling import seal_folder
from connectors.systems.files.source import Listing
from connectors.testing.servers import MotoServer

from ...servers import required
from .helpers import days_read_once, rows, swept


class Bucket:
    """An empty bucket, and the sink's view of a folder in it."""

    def __init__(self) -> None:
        self.name = f"b{uuid.uuid4().hex}"
        self.storage = required(MotoServer).bucket(self.name)
        self.client = required(MotoServer).client("s3")
        self.path = f"s3://{self.name}/folder"

    def folder(self) -> SinkFolder:
        return SinkFolder(S3Storage(self.path, self.storage), "orders")

    def store(self) -> Storage:
        return S3Storage(f"s3://{self.name}/x", self.storage)

    def put(self, name: str, content: bytes) -> None:
        self.client.put_object(Bucket=self.name, Key=f"folder/{name}", Body=content)

    def get(self, name: str) -> bytes:
        return bytes(self.client.get_object(Bucket=self.name, Key=f"folder/{name}")["Body"].read())

    def keys(self) -> list[str]:
        listed = self.client.list_objects_v2(Bucket=self.name).get("Contents", [])
        return [item["Key"].removeprefix("folder/") for item in listed]

    def visible(self) -> list[str]:
        return [key for key in self.keys() if not key.startswith(".")]

    def options(self) -> dict[str, str]:
        return {"path": self.path, "storageOptions": json.dumps(self.storage)}


@pytest.fixture
def bucket() -> Bucket:
    return Bucket()


class Died(BaseException):
    """The process is gone."""


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """``[n, after]``: the n-th change to the bucket dies, before it or after it; ``[-1, 0]`` lets all of them pass."""
    left = [-1, 0]
    whole = module.Bucket.call
    changes = ("put_object", "create", "upload", "complete", "delete", "abort")

    def call(self: module.Bucket, operation: str, **arguments: Any) -> Any:
        if not operation.startswith(changes) or left[0] < 0:
            return whole(self, operation, **arguments)
        left[0] -= 1
        if left[0] < 0 and not left[1]:
            raise Died
        result = whole(self, operation, **arguments)
        if left[0] < 0:
            raise Died
        return result

    monkeypatch.setattr(module.Bucket, "call", call)
    return left


def slow_down(patch: pytest.MonkeyPatch, operation: str, end: str) -> None:
    """S3 answers SlowDown to requests of ``operation`` for keys with this end."""
    request = BaseClient._make_api_call  # type: ignore[attr-defined]

    def slow(client: Any, name: str, arguments: Any) -> Any:
        if name == operation and arguments["Key"].endswith(end):
            raise ClientError({"Error": {"Code": "SlowDown"}, "ResponseMetadata": {"HTTPStatusCode": 503}}, name)  # type: ignore[typeddict-item]
        return request(client, name, arguments)

    patch.setattr(BaseClient, "_make_api_call", slow)


class TestStore:
    def test_a_file_is_put_once(self, bucket: Bucket) -> None:
        store = bucket.store()
        assert store.put_if_absent("a/b", b"first")
        assert not store.put_if_absent("a/b", b"second")
        assert store.read("a/b") == b"first"

    def test_a_put_whose_answer_was_lost_is_ones_own(self, bucket: Bucket) -> None:
        store = bucket.store()
        assert store.put_if_absent("a", b"mine")
        assert store.put_if_absent("a", b"mine")

    def test_a_listing_is_one_level_of_any_length(self, bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module.Bucket, "page", 2)
        store = bucket.store()
        for number in range(5):
            bucket.client.put_object(Bucket=bucket.name, Key=f"x/many/{number}", Body=b"")
        store.put_if_absent("top", b"")
        assert len(store.names("many")) == 5
        assert (store.names(), store.folders(), store.names("nothing")) == (["top"], ["many"], [])

    def test_a_listing_of_uploads_of_several_pages_is_complete(
        self, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """moto answers all of them at once; here each page has one, after both markers."""
        request = BaseClient._make_api_call  # type: ignore[attr-defined]

        def paged(client: Any, operation: str, arguments: Any) -> Any:
            after = (arguments.pop("KeyMarker", ""), arguments.pop("UploadIdMarker", ""))
            answer = request(client, operation, arguments)
            uploads = sorted(answer["Uploads"], key=lambda upload: (upload["Key"], upload["UploadId"]))
            page, *rest = [upload for upload in uploads if (upload["Key"], upload["UploadId"]) > after]
            markers = {"NextKeyMarker": page["Key"], "NextUploadIdMarker": page["UploadId"]} if rest else {}
            return {"Uploads": [page], "IsTruncated": bool(rest), **markers}

        create = partial(bucket.client.create_multipart_upload, Bucket=bucket.name)
        created = [create(Key=key)["UploadId"] for key in ("x/a", "x/a", "x/b")]
        monkeypatch.setattr(BaseClient, "_make_api_call", paged)
        listed = islice(module.Bucket(bucket.name, bucket.storage).uploads("x/"), 9)
        assert sorted(upload["UploadId"] for upload in listed) == sorted(created)

    def test_what_is_not_there_is_not_found(self, bucket: Bucket) -> None:
        store = bucket.store()
        store.delete("nothing")
        with pytest.raises(FileNotFoundError):
            store.read("nothing")

    def test_the_sizes_of_files_in_many_folders_are_one_listing(
        self, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        names = [f"stage/a/day={day}/part-{day}" for day in range(12)]
        for name in [*names, "stage/a/day=0/another"]:
            bucket.put(name, b"rows")
        store, requests = S3Storage(bucket.path, bucket.storage), list[str]()
        whole = module.Bucket.call

        def call(self: module.Bucket, operation: str, **arguments: Any) -> Any:
            requests.append(operation)
            return whole(self, operation, **arguments)

        monkeypatch.setattr(module.Bucket, "call", call)
        assert store.sizes([*names, "stage/a/missing"]) == dict.fromkeys(names, 4)
        assert store.sizes([]) == {}
        assert requests == ["list_objects_v2"]

    def test_the_size_of_one_file_takes_no_listing_which_costs_twelve_times_as_much(
        self, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        bucket.put("stage/a", b"rows")
        store, requests = S3Storage(bucket.path, bucket.storage), list[str]()
        whole = module.Bucket.call

        def call(self: module.Bucket, operation: str, **arguments: Any) -> Any:
            requests.append(operation)
            return whole(self, operation, **arguments)

        monkeypatch.setattr(module.Bucket, "call", call)
        assert (store.sizes(["stage/a"]), store.sizes(["stage/b"])) == ({"stage/a": 4}, {})
        assert requests == ["head_object", "head_object"]


class TestConditions:
    def test_a_server_that_ignores_conditions_is_refused_before_a_batch(
        self, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        request = BaseClient._make_api_call  # type: ignore[attr-defined]

        def ignoring(client: Any, operation: str, arguments: Any) -> Any:
            return request(client, operation, {name: value for name, value in arguments.items() if name != "IfNoneMatch"})

        monkeypatch.setattr(BaseClient, "_make_api_call", ignoring)
        sink = FilesSink.of(bucket.options())  # type: ignore[arg-type]
        for _ in range(2):
            with pytest.raises(Misconfigured, match=f'path .*"{bucket.path}" cannot .* ignores If-None-Match'):
                Commit(sink).begin(Batch(sink.sink_id(), "q", 0))
        assert bucket.keys() == []

    def test_a_server_without_conditions_is_no_outage(self, bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
        answer = {"Error": {"Code": "NotImplemented"}, "ResponseMetadata": {"HTTPStatusCode": 501}}

        def refuse(self: Any, operation: str, arguments: Any) -> None:
            raise ClientError(answer, operation)  # type: ignore[arg-type]

        monkeypatch.setattr(BaseClient, "_make_api_call", refuse)
        with pytest.raises(Misconfigured, match="conditional writes"):
            bucket.store().put_if_absent("a", b"")

    def test_conditions_are_tried_once_in_a_process(self, bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
        bucket.store().check()
        monkeypatch.setattr(BaseClient, "_make_api_call", None)
        bucket.store().check()


class TestPublication:
    @pytest.mark.parametrize("after", [0, 1], ids=["before", "after"])
    def test_one_that_breaks_off_at_any_step_is_finished_by_the_next(self, steps: list[int], after: int) -> None:
        number = 0
        while True:
            bucket = Bucket()
            bucket.put("staged", b"rows")
            steps[:] = [number, after]
            try:
                bucket.folder().publish("staged", "part-0")
            except Died:
                names = bucket.visible()
                assert set(names) <= {"staged", "part-0"}
                bucket.folder().publish("staged", "part-0")
                assert bucket.keys() == ["part-0"]
                assert bucket.get("part-0") == b"rows"
                number += 1
                continue
            break
        assert number == 6, "create, copy, put the id, complete, delete the staged one, delete the id"

    def test_what_was_published_and_taken_away_is_not_brought_back(self, bucket: Bucket) -> None:
        bucket.put("staged", b"rows")
        bucket.folder().publish("staged", "part-0")
        bucket.client.delete_object(Bucket=bucket.name, Key="folder/part-0")
        bucket.folder().publish("staged", "part-0")
        assert bucket.keys() == []

    def test_an_upload_that_is_gone_with_its_object_stops_with_both_ways_out_and_keeps_the_rows(
        self, bucket: Bucket, steps: list[int]
    ) -> None:
        """Completed and taken away, or aborted by a rule of the bucket: nobody can tell."""
        ways = {"moved": ["staged"], "aborted": []}
        for cause, visible in ways.items():
            bucket.put("staged", b"rows")
            steps[:] = [3, cause == "moved"]  # where the upload is completed, after it or before
            with pytest.raises(Died):
                bucket.folder().publish("staged", "part-0")
            if cause == "moved":
                bucket.client.delete_object(Bucket=bucket.name, Key="folder/part-0")
            else:
                (upload,) = bucket.client.list_multipart_uploads(Bucket=bucket.name)["Uploads"]
                bucket.client.abort_multipart_upload(Bucket=bucket.name, Key=upload["Key"], UploadId=upload["UploadId"])
            with pytest.raises(Fatal, match="a reader has moved the object since, or a rule of the bucket") as stopped:
                bucket.folder().publish("staged", "part-0")
            assert bucket.get("staged") == b"rows"
            moved, never = re.findall(rf"delete s3://{bucket.name}/folder/(\S+?)[:;]? ", stopped.value.way_out)
            bucket.client.delete_object(Bucket=bucket.name, Key=f"folder/{moved if cause == 'moved' else never}".rstrip(";:"))
            bucket.folder().publish("staged", "part-0")
            assert bucket.visible() == ([] if cause == "moved" else ["part-0"]), visible

    def test_an_upload_whose_id_was_never_put_is_aborted_when_it_is_old(self, bucket: Bucket, steps: list[int]) -> None:
        final = "part-0000000000-0123456789ab-0.parquet"
        bucket.put("staged", b"rows")
        steps[:] = [1, 1]  # after the copy
        with pytest.raises(Died):
            bucket.folder().publish("staged", final)
        foreign = bucket.client.create_multipart_upload(Bucket=bucket.name, Key="folder/of-another-program")["UploadId"]
        bucket.folder().sweep(3600, frozenset())  # moto says that every upload is of 2010
        left = bucket.client.list_multipart_uploads(Bucket=bucket.name)["Uploads"]
        assert [upload["UploadId"] for upload in left] == [foreign]

    def test_an_upload_whose_id_was_put_is_never_aborted(self, bucket: Bucket, steps: list[int]) -> None:
        final = "part-0000000000-0123456789ab-0.parquet"
        bucket.put("staged", b"rows")
        steps[:] = [3, 0]
        with pytest.raises(Died):
            bucket.folder().publish("staged", final)
        bucket.folder().sweep(-1, frozenset())
        assert bucket.folder().publish("staged", final)
        assert bucket.visible() == [final]

    def test_a_staged_file_that_s3_did_not_delete_is_deleted_by_the_next_try_and_not_published_again(
        self, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The answer to a deletion of many objects is 200 also where some of them are still there."""
        request = BaseClient._make_api_call  # type: ignore[attr-defined]

        def busy(client: Any, operation: str, arguments: Any) -> Any:
            if operation != "DeleteObjects":
                return request(client, operation, arguments)
            return {"Errors": [{"Key": "folder/staged", "Code": "InternalError", "Message": "We are busy"}]}

        bucket.put("staged", b"rows")
        with monkeypatch.context() as patch:
            patch.setattr(BaseClient, "_make_api_call", busy)
            with pytest.raises(Transient, match=r"InternalError .*folder/staged"):
                bucket.folder().publish("staged", "part-0")
        bucket.folder().publish("staged", "part-0")
        assert bucket.keys() == ["part-0"]

    @pytest.mark.parametrize("other", [{"partPrefix": "data"}, {"rolling": "policy"}], ids=["name", "rolling"])
    def test_a_batch_that_a_run_has_completed_is_not_published_again_by_one_with_other_options(
        self, bucket: Bucket, steps: list[int], other: dict[str, str]
    ) -> None:
        sink = FilesSink.of(bucket.options())  # type: ignore[arg-type]
        batch = Batch(sink.sink_id(), "q", 0)
        staged = [stage(sink, batch, rows(0).schema, 0, iter([rows(0, 1, 2, 3, 4)]))]
        sink.ledger().record(Entry("q", 0, 5, committables=tuple(map(asdict, staged))))
        steps[:] = [4, 0]  # where the staged file is to be deleted
        with pytest.raises(Died):
            sink.committer().publish(batch, staged)
        Commit(FilesSink.of({**bucket.options(), **other})).recover(batch)  # type: ignore[arg-type]
        seal_folder(bucket.path, bucket.storage)
        tables = [pq.read_table(pa.BufferReader(bucket.get(key))) for key in bucket.visible()]
        assert [table["id"].to_pylist() for table in tables] == [[0, 1, 2, 3, 4]]

    def test_a_task_whose_files_another_run_has_removed_cannot_be_committed(self, bucket: Bucket) -> None:
        sink = FilesSink.of(bucket.options())  # type: ignore[arg-type]
        batch = Batch(sink.sink_id(), "q", 0)
        writer = sink.writer(batch, rows(0).schema, 0)
        writer.write(rows(0, 1))
        writer.close()
        sink.folder().remove(writer.attempt)
        with pytest.raises(Fatal, match=r"rows-0\.parquet .* is gone"):
            Commit(sink).finish(batch, [writer.prepare()])

    def test_a_file_that_s3_does_not_complete_at_once_keeps_no_other_one_from_being_moved_by_a_reader(
        self, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        files = [("stage/a", "part-0"), ("stage/b", "part-1")]
        for staged, _ in files:
            bucket.put(staged, b"rows")
        with monkeypatch.context() as patch:
            slow_down(patch, "CompleteMultipartUpload", "part-1")
            with pytest.raises(Transient, match="SlowDown"):
                bucket.folder().publish_all(files)
        bucket.client.delete_object(Bucket=bucket.name, Key="folder/part-0")
        bucket.folder().publish_all(files)
        assert bucket.keys() == ["part-1"]

    def test_uploads_of_a_batch_that_s3_does_not_prepare_at_once_are_not_left(
        self, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        files = [(f"stage/{number}", f"part-{number}") for number in range(4)]
        for staged, _ in files:
            bucket.put(staged, b"rows")
        with monkeypatch.context() as patch:
            slow_down(patch, "UploadPartCopy", "part-3")
            with pytest.raises(Transient, match="SlowDown"):
                bucket.folder().publish_all(files)
        assert "Uploads" not in bucket.client.list_multipart_uploads(Bucket=bucket.name)
        bucket.folder().publish_all(files)
        assert bucket.keys() == [final for _, final in files]

    def test_of_several_uploads_that_are_gone_with_their_objects_the_way_out_names_all(
        self, bucket: Bucket, steps: list[int]
    ) -> None:
        """Who deletes the record for the first one publishes again what a reader has moved."""
        files = [("stage/a", "part-0"), ("stage/b", "part-1"), ("stage/c", "part-2")]
        for staged, _ in files:
            bucket.put(staged, b"rows")
        steps[:] = [6, 1]  # after the record
        with pytest.raises(Died):
            bucket.folder().publish_all(files)
        (record,) = (key for key in sorted(bucket.keys()) if "/uploads/" in key)
        uploads = json.loads(bucket.get(record))
        for name, upload in uploads.items():
            target = {"Bucket": bucket.name, "Key": f"folder/{upload['final']}", "UploadId": upload["upload"]}
            if name.endswith("c"):
                bucket.client.complete_multipart_upload(MultipartUpload={"Parts": upload["parts"]}, **target)
            if name.endswith("b"):
                bucket.client.complete_multipart_upload(MultipartUpload={"Parts": upload["parts"]}, **target)
                bucket.client.delete_object(Bucket=bucket.name, Key=target["Key"])
            if name.endswith("a"):
                bucket.client.abort_multipart_upload(**target)
        with pytest.raises(Fatal, match="delete first what is staged of those that a reader has moved"):
            bucket.folder().publish_all(files)
        assert bucket.keys()[-3:] == ["part-2", "stage/a", "stage/b"]

    def test_nothing_is_overwritten(self, bucket: Bucket) -> None:
        bucket.put("staged", b"rows")
        bucket.put("part-0", b"somebody's")
        with pytest.raises(Fatal, match="part-0 exists"):
            bucket.folder().publish("staged", "part-0")
        assert bucket.get("part-0") == b"somebody's"

    def test_an_empty_file_and_one_of_several_parts(self, bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("connectors.storage.s3._COPIED", 5 << 20)
        content = bytes(range(256)) * (6 << 12)
        for name, data in (("empty", b""), ("large", content)):
            bucket.put(f"staged-{name}", data)
            bucket.folder().publish(f"staged-{name}", name)
            assert bucket.get(name) == data

    def test_old_staging_is_swept_but_not_that_of_a_live_batch(self, bucket: Bucket) -> None:
        swept(bucket.folder(), bucket.put, bucket.keys)


class Interruption:
    """Lets ``work`` happen before a request, once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_met: Callable[[str], bool] = lambda operation: False
        self.work: Callable[[], object] = list
        request = BaseClient._make_api_call  # type: ignore[attr-defined]

        def interrupted(client: Any, operation: str, arguments: Any) -> Any:
            if self.is_met(operation):
                self.is_met = lambda operation: False
                self.work()
            return request(client, operation, arguments)

        monkeypatch.setattr(BaseClient, "_make_api_call", interrupted)

    def before(self, operation: str, work: Callable[[], object]) -> None:
        """Before the next request with the name ``operation``."""
        self.is_met, self.work = lambda name: name == operation, work

    def before_number(self, number: int, work: Callable[[], object]) -> None:
        """Before the request of that number from now on."""
        left = iter(range(number, -1, -1))
        self.is_met, self.work = lambda name: next(left) == 0, work


@pytest.fixture
def interruption(monkeypatch: pytest.MonkeyPatch) -> Iterator[Interruption]:
    monkeypatch.setattr("connectors.storage.s3.AT_ONCE", 1)
    monkeypatch.setattr(module, "_RETRIES", {"total_max_attempts": 1})
    module._client.cache_clear()
    yield Interruption(monkeypatch)
    module._client.cache_clear()


def tried_again(action: Callable[[], object]) -> None:
    """Does what a commit does after an outage: moto answers 500 for an upload that is completed twice."""
    with contextlib.suppress(Transient):
        action()
        return
    action()


class TestTwoAtOnce:
    """What one driver does falls between two requests of another one, which stood still there."""

    def recorded(self, bucket: Bucket) -> tuple[FilesSink, Batch, list[Committable]]:
        """A sink of hidden parts, and a batch of five rows that is recorded and not published."""
        sink = FilesSink.of({**bucket.options(), "rolling": "policy"})
        batch = Batch(sink.sink_id(), "q", 0)
        staged = [stage(sink, batch, rows(0).schema, 0, iter([rows(0, 1, 2, 3, 4)]))]
        sink.ledger().record(Entry("q", 0, 5, committables=tuple(map(asdict, staged))))
        return sink, batch, staged  # type: ignore[return-value]

    @pytest.mark.parametrize("operation", ["HeadObject", "UploadPartCopy", "PutObject", "CompleteMultipartUpload"])
    def test_an_old_driver_and_a_new_one_publish_a_batch_once(
        self, bucket: Bucket, interruption: Interruption, operation: str
    ) -> None:
        sink, batch, staged = self.recorded(bucket)
        interruption.before(operation, partial(sink.committer().publish, batch, staged))
        tried_again(partial(sink.committer().publish, batch, staged))
        seal_folder(bucket.path, bucket.storage)
        tables = (pq.read_table(pa.BufferReader(bucket.get(key))) for key in bucket.visible())
        assert sorted(number for table in tables for number in table["id"].to_pylist()) == [0, 1, 2, 3, 4]

    def test_an_object_that_appears_after_the_preparation_is_not_overwritten_and_the_rows_stay_staged(
        self, bucket: Bucket, interruption: Interruption
    ) -> None:
        bucket.put("staged", b"rows")
        interruption.before("CompleteMultipartUpload", partial(bucket.put, "part-0", b"somebody's"))
        with pytest.raises(Fatal, match="part-0 exists"):
            bucket.folder().publish("staged", "part-0")
        assert (bucket.get("staged"), bucket.get("part-0")) == (b"rows", b"somebody's")

    def test_an_answer_that_is_lost_at_any_request_is_made_good_by_the_next_try(
        self, interruption: Interruption, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        left = -1
        whole = module.Bucket.call

        def call(self: module.Bucket, operation: str, **arguments: Any) -> Any:
            nonlocal left
            left -= 1
            answer = whole(self, operation, **arguments)
            if left == -1:
                raise Transient("lost")
            return answer

        monkeypatch.setattr(module.Bucket, "call", call)
        number = 0
        while left < 0:
            bucket = Bucket()
            bucket.put("stage/a", b"rows")
            left = number
            tried_again(partial(bucket.folder().publish, "stage/a", "part-0"))
            assert bucket.keys() == ["part-0"], f"request {number}"
            number += 1
        assert number > 10

    def test_a_file_that_was_there_and_is_deleted_in_this_moment_was_not_put(
        self, bucket: Bucket, interruption: Interruption
    ) -> None:
        """As the mark of a batch that another driver has published."""
        store = bucket.store()
        store.put_if_absent("a", b"mark")
        interruption.before("GetObject", partial(store.delete, "a"))
        assert not store.put_if_absent("a", b"mark")

    @pytest.mark.parametrize("is_moved", [False, True], ids=["left", "moved"])
    def test_two_that_publish_the_same_file_stop_neither_whatever_a_reader_does(
        self, interruption: Interruption, is_moved: bool
    ) -> None:
        """A query, and ``connectors files seal`` beside it."""
        number, works = 0, [True]
        while len(works) > number:
            bucket = Bucket()
            bucket.put("stage/a", b"rows")
            publish = partial(bucket.folder().publish, "stage/a", "part-0")

            def work(bucket: Bucket = bucket, publish: Callable[[], object] = publish) -> None:
                works.append(True)
                publish()
                if is_moved:
                    bucket.client.delete_object(Bucket=bucket.name, Key="folder/part-0")

            interruption.before_number(number, work)
            tried_again(publish)
            number += 1
            assert bucket.keys() == ([] if is_moved and len(works) > number else ["part-0"]), f"before request {number - 1}"
        assert number > 10


def test_a_file_of_a_large_batch_costs_at_most_five_requests(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = FilesSink.of({**bucket.options(), "partitionBy": "name"})
    batch = Batch(sink.sink_id(), "q", 0)
    staged = [stage(sink, batch, rows(0).schema, task, iter([rows(*range(24))])) for task in range(2)]
    requests: list[str] = []
    request = BaseClient._make_api_call  # type: ignore[attr-defined]

    def counted(client: Any, operation: str, arguments: Any) -> Any:
        requests.append(operation)
        return request(client, operation, arguments)

    monkeypatch.setattr(BaseClient, "_make_api_call", counted)
    Commit(sink).finish(batch, staged)
    assert len(bucket.visible()) == 48
    assert len(requests) <= 5 * 48, Counter(requests)


class TestErrors:
    def test_wrong_storage_options_are_told_at_once(self) -> None:
        storage = {"key": "KEY", "anonymous": True, "client_kwargs": {"verify": 1}}
        with pytest.raises(Misconfigured) as wrong:
            FilesSink.of({"path": "s3://b/x", "storageOptions": storage})
        assert "anonymous, client_kwargs.verify" in str(wrong.value)
        assert "one of key and secret" in str(wrong.value)
        assert "KEY" not in str(wrong.value)

    def test_a_path_without_a_bucket_is_told(self) -> None:
        with pytest.raises(Misconfigured, match="must name a bucket"):
            FilesSink.of({"path": "s3:///x"})

    def test_a_bucket_that_is_not_there_is_one_clear_error_without_secrets(self, bucket: Bucket) -> None:
        storage = {**bucket.storage, "secret": "very secret"}
        sink = FilesSink.of({"path": "s3://no-such-bucket/x", "storageOptions": json.dumps(storage)})
        with pytest.raises(Misconfigured, match=r"path .*names a bucket that is not there .bucket no-such-bucket") as wrong:
            Commit(sink).begin(Batch(sink.sink_id(), "q", 0))
        assert "very secret" not in str(wrong.value)

    def test_a_server_that_is_away_is_an_outage(self, bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
        gone = {**bucket.storage, "client_kwargs": {"endpoint_url": "http://127.0.0.1:9", "region_name": "us-east-1"}}
        with pytest.raises(Transient, match="cannot be reached"):
            S3Storage(bucket.path, gone).size("x")

    @pytest.mark.parametrize(
        ("code", "status", "text"),
        [("403", 403, "credentials"), ("ExpiredToken", 400, "token"), ("400", 400, "token"), ("301", 301, "region_name")],
    )
    def test_a_refusal_names_the_option_also_where_the_answer_has_no_body(
        self, bucket: Bucket, monkeypatch: pytest.MonkeyPatch, code: str, status: int, text: str
    ) -> None:
        def refuse(self: Any, operation: str, arguments: Any) -> None:
            raise ClientError({"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}, operation)

        monkeypatch.setattr(BaseClient, "_make_api_call", refuse)
        with pytest.raises(Misconfigured, match=f"storageOptions .*{text}.*bucket {bucket.name}"):
            S3Storage(bucket.path, bucket.storage).size("x")

    def test_any_other_refusal_is_an_error_of_the_operating_system(
        self, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(self: Any, operation: str, arguments: Any) -> None:
            answer = {"Error": {"Code": "Odd", "Message": "so"}, "ResponseMetadata": {"HTTPStatusCode": 418}}
            raise ClientError(answer, operation)

        monkeypatch.setattr(BaseClient, "_make_api_call", refuse)
        with pytest.raises(OSError, match=r"S3 answered Odd \(418\) for s3://.*: so"):
            S3Storage(bucket.path, bucket.storage).size("x")

    def test_what_spark_is_told_is_of_this_bucket_alone_and_its_secrets_are_redacted_by_name(self, bucket: Bucket) -> None:
        options = S3Storage(bucket.path, {**bucket.storage, "token": "t"}).spark_options()
        assert options[f"fs.s3a.bucket.{bucket.name}.endpoint"] == required(MotoServer).url
        hidden = [key for key, value in options.items() if value in ("test", "t")]
        assert all(any(word in key for word in ("secret", "token", "access.key")) for key in hidden)
        assert S3Storage(bucket.path, {}).spark_options() == {}

    def test_a_secret_may_be_a_reference_and_is_not_shown(self, bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SECRET_AWS_KEY", "very secret")
        options = {"path": "s3://no-such-bucket/x", "storageOptions": {**bucket.storage, "secret": "{{secrets/aws/key}}"}}
        sink = FilesSink.of(options)
        assert sink.values["storageOptions"]["secret"] == "very secret"
        with pytest.raises(Misconfigured) as wrong:
            Commit(sink).begin(Batch(sink.sink_id(), "q", 0))
        assert "very secret" not in str(wrong.value)
        monkeypatch.delenv("SECRET_AWS_KEY")
        with pytest.raises(Misconfigured, match=r"storageOptions .*\$SECRET_AWS_KEY"):
            FilesSink.of(options)


class TestSource:
    @pytest.mark.parametrize(("glob", "recursive"), [("", "true"), ("/*", "false"), ("/*", "true")])
    def test_a_key_with_an_empty_part_doubles_no_other(self, bucket: Bucket, glob: str, recursive: str) -> None:
        bucket.put("a.json", b"{}")
        bucket.put("/b.json", b"{}")
        bucket.put("deep//c.json", b"{}")
        listing = Listing(bucket.path + glob, bucket.storage, recursive=recursive == "true")
        assert sorted(file.path for file in listing) == ["a.json", *(["deep//c.json"] if recursive == "true" else [])]

    def test_files_in_folders_of_a_bucket_are_read_once(self, bucket: Bucket) -> None:
        source = days_read_once(bucket.path, bucket.options())
        assert source.schema == "`id` bigint, `name` string, `day` string"
