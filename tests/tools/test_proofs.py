"""Proofs of pipelines: on systems that were started outside, and of a pipeline that doubles rows."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from connectors.testing.servers import (
    DynamoDbServer,
    KafkaServer,
    MariaDbServer,
    MotoServer,
    OpenSearchServer,
    PostgresServer,
    RedisServer,
)
from connectors_tools.proof.proof import Proof
from connectors_tools.proof.rounds import FAULTS
from connectors_tools.proof.verdict import Verdict
from tests.evidence import FAULTS as FAULTS_OF_PROOFS
from tests.servers import optional, required

PIPELINES = Path(__file__).parents[2] / "notebooks" / "pipelines"


def proof_of(kind: str, folder: Path, **changes: Any) -> Proof:
    parameters = {"checks": f"rules/{kind}.json", **changes.pop("parameters", {})}
    return Proof(PIPELINES / f"{kind}.ipynb", parameters, folder, **changes)


def judged(proof: Proof) -> Verdict:
    """Runs the proof, and sees that nothing is left behind."""
    lines: list[str] = []
    try:
        verdict = proof.run(lines.append)
    finally:
        proof.clean()
    assert [str(name) for name in proof.subject.names() if name.scratch.exists(name.name)] == []
    print("\n".join(lines), verdict, sep="\n")
    return verdict


_APPEND = "lambda rows, batch: rows{change}.write.format('delta').mode('append').save({{}})"
BROKEN = {
    "appends without a ledger": (_APPEND.format(change=""), "sink-commit", "doubled"),
    "forgets a batch": (_APPEND.replace("rows{", "batch == 1 or rows{").format(change=""), "sink-commit", "lost"),
    "depends on the batch": (_APPEND.format(change=".selectExpr('*', str(batch) + ' AS number')"), "second-driver", "wrong"),
}
"""Sinks that a notebook may have: the text, a fault, and what the fault makes of the rows."""


@pytest.mark.soak
@pytest.mark.long
@pytest.mark.spark
@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.soak if at else ()) for at, name in enumerate(BROKEN)])
def test_a_pipeline_with_a_sink_that_is_none_is_caught(spark: Any, tmp_path: Path, name: str) -> None:
    sink, fault, harm = BROKEN[name]
    notebook = tmp_path / "naive.ipynb"
    cells = json.loads((PIPELINES / "lines_to_delta.ipynb").read_text())
    for cell in cells["cells"]:
        text = "".join(cell["source"])
        text = text.replace('connectors.foreach_batch("delta", pipeline.table)', sink.format("pipeline.table['path']"))
        place = 'path=pipeline.path("quarantine")'
        text = text.replace(f'connectors.foreach_batch("delta", {place})', sink.format("pipeline.path('quarantine')"))
        cell["source"] = text
    notebook.write_text(json.dumps(cells))
    shutil.copytree(PIPELINES / "rules", tmp_path / "rules")
    proof = Proof(notebook, {"checks": "rules/lines_to_delta.json"}, tmp_path / "proof", 1, 400, [fault])
    verdict = judged(proof)
    assert proof.outcomes[0].struck
    target = verdict.comparisons[0]
    assert target.place == "target"
    assert getattr(target, harm) > 0
    assert not verdict.ok


def kafka(folder: Path) -> Mapping[str, str]:
    return {"kafka_bootstrap_servers": required(KafkaServer).bootstrap}


def postgres(folder: Path) -> Mapping[str, str]:
    server = required(PostgresServer)
    return {"url": server.jdbc, "options": json.dumps({"user": server.user})}


def mariadb(folder: Path) -> Mapping[str, str]:
    server = optional(MariaDbServer)
    return {"url": server.jdbc, "options": json.dumps({"user": server.user, "password": server.password})}


def bucket(folder: Path) -> Mapping[str, str]:
    options = {"storageOptions": json.dumps(required(MotoServer).bucket("proofs"))}
    return {"source": "s3://proofs/*.parquet", "options": json.dumps(options)}


def target_bucket(folder: Path) -> Mapping[str, str]:
    return {"target": "s3://proofs/out", "options": bucket(folder)["options"]}


def redis(folder: Path) -> Mapping[str, str]:
    return {"url": required(RedisServer).url}


def search(folder: Path) -> Mapping[str, str]:
    return {"hosts": required(OpenSearchServer).url}


def dynamodb(folder: Path) -> Mapping[str, str]:
    account = {"accessKeyId": "test", "secretAccessKey": "test"}
    return {"region": "us-east-1", "options": json.dumps({"endpoint": optional(DynamoDbServer).url, **account})}


def changes(folder: Path) -> Mapping[str, str]:
    server = required(PostgresServer)
    return {"database_hostname": f"127.0.0.1:{server.port}", "database_user": server.user}


SYSTEMS = {
    "kafka_to_delta": kafka,
    "kafka_to_kafka": kafka,
    "jdbc_to_delta": postgres,
    "delta_to_jdbc": postgres,
    "mariadb: delta_to_jdbc": mariadb,
    "files_to_delta": bucket,
    "delta_to_files": target_bucket,
    "redis_to_delta": redis,
    "delta_to_redis": redis,
    "elasticsearch_to_delta": search,
    "delta_to_elasticsearch": search,
    "dynamodb_to_delta": dynamodb,
    "delta_to_dynamodb": dynamodb,
    "cdc_to_delta": changes,
}


def evidence_of(system: str) -> list[tuple[str, str, int]]:
    source, target = system.rpartition(" ")[2].replace("cdc", "connect").split("_to_")
    claims = {f"{source} source", f"{target} sink"} - {"delta source"}  # which is Delta's own
    return [(claim, FAULTS_OF_PROOFS, len(FAULTS)) for claim in sorted(claims)]


@pytest.mark.soak
@pytest.mark.server
@pytest.mark.spark
@pytest.mark.evidence(of=evidence_of)
@pytest.mark.parametrize("system", SYSTEMS)
def test_a_pipeline_on_a_system_that_was_there_keeps_every_promise(spark: Any, system: str, tmp_path: Path) -> None:
    kind = system.rpartition(" ")[2]
    proof = proof_of(kind, tmp_path / "proof", parameters=SYSTEMS[system](tmp_path), kills=len(FAULTS), rows=4000)
    assert not proof.is_demonstration
    verdict = judged(proof)
    assert verdict.ok, proof.outcomes
    assert sum(outcome.struck for outcome in proof.outcomes) >= 3


@pytest.mark.soak
@pytest.mark.server
@pytest.mark.spark
@pytest.mark.parametrize("kind", ["kafka_to_kafka", "delta_to_jdbc", "lines_to_delta"])
def test_without_its_ledger_a_sink_is_seen_to_double(spark: Any, kind: str, tmp_path: Path) -> None:
    faults = ["lost-answer", "driver"]
    proof = proof_of(kind, tmp_path / "proof", kills=6, rows=3000, faults=faults, unprotected=True)
    verdict = judged(proof)
    assert sum(comparison.doubled for comparison in verdict.comparisons) > 0


@pytest.mark.soak
@pytest.mark.server
@pytest.mark.spark
def test_the_latency_of_a_pipeline_without_an_end_is_told(spark: Any, tmp_path: Path) -> None:
    proof = proof_of("kafka_to_delta", tmp_path / "proof", kills=1, rows=400, faults=["lost-answer"], latency=True)
    assert judged(proof).ok
    assert len(proof.latencies) == 30
    assert 0.05 < min(proof.latencies) < max(proof.latencies) < 60, proof.latencies
