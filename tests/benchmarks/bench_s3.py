"""The publication of a large batch to S3 by ``connectors.files``: seconds, and requests for each file.

``python tests/benchmarks/bench_s3.py [--tasks 200] [--folders 24] [--milliseconds 30]`` publishes one file for each task and
folder to a bucket in memory that answers each request after so many milliseconds. Goal: at most 120 seconds for 4,800 files,
with at most five requests each. The bucket counts what a client of S3 would send.
"""

# ruff: noqa: N803 - arguments have the names that boto3 gives them
from __future__ import annotations

import argparse
import datetime
import io
import sys
import threading
import time
from collections import Counter
from itertools import count
from pathlib import Path
from typing import Any

from figures import figure

LIBRARY = Path(__file__).parents[2] / "lib"
SECONDS, REQUESTS = 120.0, 5.0


class SlowBucket:
    """A bucket in memory with the methods of ``boto3``'s client that the library calls."""

    def __init__(self, seconds: float) -> None:
        self.objects: dict[str, bytes] = {}
        self.requests: Counter[str] = Counter()
        self._seconds = seconds
        self._uploads: dict[str, tuple[str, bytes]] = {}
        self._numbers = count()
        self._lock = threading.Lock()

    def __getattr__(self, operation: str) -> Any:
        answer = object.__getattribute__(self, f"answer_{operation}")

        def request(Bucket: str, **arguments: Any) -> Any:
            time.sleep(self._seconds)
            with self._lock:
                self.requests[operation] += 1
                return answer(**arguments)

        return request

    def answer_put_object(self, Key: str, Body: bytes, IfNoneMatch: str = "") -> Any:
        if IfNoneMatch and Key in self.objects:
            raise refusal("PreconditionFailed", 412)
        self.objects[Key] = Body

    def answer_get_object(self, Key: str) -> Any:
        return {"Body": io.BytesIO(self._object(Key))}

    def answer_head_object(self, Key: str) -> Any:
        return {"ContentLength": len(self._object(Key))}

    def answer_list_objects_v2(
        self, Prefix: str, MaxKeys: int, Delimiter: str | None = None, ContinuationToken: str = ""
    ) -> Any:
        listed = sorted(key for key in self.objects if key.startswith(Prefix))
        inside = [key.partition(Delimiter) for key in (key[len(Prefix) :] for key in listed)] if Delimiter else []
        folders = sorted({folder for folder, slash, _ in inside if slash})
        keys = [f"{Prefix}{name}" for name, slash, _ in inside if not slash] if Delimiter else listed
        page = [key for key in keys if key > ContinuationToken][:MaxKeys]
        now = datetime.datetime.now(datetime.timezone.utc)
        return {
            "Contents": [{"Key": key, "Size": len(self.objects[key]), "LastModified": now} for key in page],
            "CommonPrefixes": [{"Prefix": f"{Prefix}{folder}/"} for folder in folders],
            "IsTruncated": len(page) == MaxKeys,
            "NextContinuationToken": page[-1] if page else "",
        }

    def answer_create_multipart_upload(self, Key: str) -> Any:
        upload = str(next(self._numbers))
        self._uploads[upload] = (Key, b"")
        return {"UploadId": upload}

    def answer_upload_part_copy(self, Key: str, UploadId: str, CopySource: Any, **_: Any) -> Any:
        self._uploads[UploadId] = (Key, self._object(CopySource["Key"]))
        return {"CopyPartResult": {"ETag": UploadId}}

    def answer_list_parts(self, Key: str, UploadId: str) -> Any:
        if UploadId not in self._uploads:
            raise refusal("NoSuchUpload", 404)

    def answer_complete_multipart_upload(self, Key: str, UploadId: str, **_: Any) -> Any:
        if Key in self.objects:
            raise refusal("PreconditionFailed", 412)
        self.answer_list_parts(Key, UploadId)
        self.objects[Key] = self._uploads.pop(UploadId)[1]

    def answer_list_multipart_uploads(self, Prefix: str) -> Any:
        return {}

    def answer_delete_object(self, Key: str) -> Any:
        self.objects.pop(Key, None)

    def answer_delete_objects(self, Delete: Any) -> Any:
        for item in Delete["Objects"]:
            self.objects.pop(item["Key"], None)
        return {}

    def _object(self, key: str) -> bytes:
        if key not in self.objects:
            raise refusal("NoSuchKey", 404)
        return self.objects[key]


def refusal(code: str, status: int) -> Exception:
    from botocore.exceptions import ClientError

    return ClientError({"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}, "request")  # type: ignore[arg-type]


def publish(tasks: int, folders: int, seconds: float) -> None:
    from connectors.core import Batch, Committable
    from connectors.core.commit import Commit
    from connectors.storage import s3_bucket
    from connectors.systems.files import FilesSink

    bucket = SlowBucket(seconds)
    s3_bucket._client = lambda options, process: bucket  # type: ignore[assignment]
    sink = FilesSink.of({"path": "s3://bucket/folder"})
    batch = Batch(sink.sink_id(), "query", 0)
    staged = []
    for _ in range(tasks):
        attempt = batch.attempt()
        names = [f"{sink.folder().stage(attempt)}/rows-{number}.parquet" for number in range(folders)]
        bucket.objects |= {f"folder/{name}": b"rows" for name in names}
        files = [[name, f"hour={number}", 4] for number, name in enumerate(names)]
        staged.append(Committable(folders, {"attempt": attempt, "files": files, "at": time.time()}))
    start = time.perf_counter()
    Commit(sink).finish(batch, staged)
    duration, number = time.perf_counter() - start, tasks * folders
    if sum("/." not in name for name in bucket.objects) != number:
        raise SystemExit("not every file is published")
    figure(f"publication of {number:,} files to S3", "s", [duration], most=SECONDS)
    requests = bucket.requests.total() / number
    figure(f"publication of {number:,} files to S3: requests for a file", "", [requests], most=REQUESTS)
    print(f"requests: {dict(bucket.requests)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--folders", type=int, default=24)
    parser.add_argument("--milliseconds", type=float, default=30.0)
    options = parser.parse_args()
    sys.path.insert(0, str(LIBRARY))
    publish(options.tasks, options.folders, options.milliseconds / 1000)


if __name__ == "__main__":
    main()
