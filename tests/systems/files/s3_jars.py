"""The jars of Spark's S3 client (``s3a://``).

Hadoop asks for the whole AWS SDK, one jar of 655 MB; the client loads five parts of it, about 15 MB.
"""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import Final

from connectors.ground.cache_folder import cache
from connectors.workbench.jars import _resolved, _without_sparks_own

_SDK: Final = "2.35.4"
"""The version that Hadoop 3.5.0 was built with."""
_PARTS: Final = ("s3", "s3-transfer-manager", "sts", "apache-client", "netty-nio-client")
_PROVIDED: Final = ("org.apache.hadoop:hadoop-common", "software.amazon.awssdk:bundle")


def s3_jars() -> list[str]:
    """Paths of the jars that ``s3a://`` needs and Spark lacks. The first call needs a Maven repository."""
    hadoop = _hadoop()
    record = cache("jars") / f"s3a-{hadoop}.txt"
    with open(record.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        jars = record.read_text().splitlines() if record.exists() else []
        if not jars or not all(Path(jar).exists() for jar in jars):
            parts = (f"software.amazon.awssdk:{part}:{_SDK}" for part in _PARTS)
            coordinates = [f"org.apache.hadoop:hadoop-aws:{hadoop}", *parts]
            excluded = {"spark.jars.excludes": ",".join(_PROVIDED)}
            jars = _without_sparks_own(_resolved(",".join(coordinates), excluded))
            record.write_text("\n".join(jars))
    return jars


def _hadoop() -> str:
    """The version of Hadoop that Spark brings."""
    import pyspark

    (api,) = (Path(pyspark.__path__[0]) / "jars").glob("hadoop-client-api-*.jar")
    return api.stem.removeprefix("hadoop-client-api-")
