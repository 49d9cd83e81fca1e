"""``python -m connectors new NAME --pipeline KIND``: a pipeline notebook, its job and its rules, from one skeleton.

The pipelines of the repository are written by the same code, so that who has read one has read all.
:mod:`~connectors_tools.pipeline_sources` and :mod:`~connectors_tools.pipeline_targets` have what differs by system, the folder
``skeletons`` what does not.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

from connectors.ground.errors import Misconfigured, Problem
from connectors.workbench import BOOTSTRAP

from .pipeline_ends import ENRICH, Parameter, SourceEnd, TargetEnd
from .pipeline_queries import QUERIES, Query
from .pipeline_sources import SOURCES
from .pipeline_targets import TARGETS
from .skeleton import bundle_files, filled

_CELL: Final = re.compile(r"^%% (code|markdown)\n", re.MULTILINE)
_RULES: Final = ({"not_null": "id"}, {"between": ["cents", 0, 1_000_000]})
"""The rules of the records of every demonstration."""
_COUNT: Final = {"row_count": {"min": 1}}
_GATE: Final = "notebooks/pipelines/quality.ipynb"
_LONGEST: Final = 100
"""Letters of a line."""
_METADATA: Final = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
_INTO: Final = (
    *("kafka", "event_hubs", "kinesis", "pubsub", "redis", "files", "lines", "hybrid", "jdbc", "http"),
    *("cassandra", "dynamodb", "elasticsearch", "connect", "cdc", "cdc_database", "jdbc_database"),
)
_OUT: Final = (
    *("kafka", "event_hubs", "kinesis", "firehose", "pubsub", "redis", "dynamodb", "cassandra", "jdbc"),
    *("elasticsearch", "http", "files", "connect"),
)
PIPELINES: Final = (
    *(f"{source}_to_delta" for source in _INTO),
    *(f"delta_to_{target}" for target in _OUT),
    "kafka_to_kafka",
    "kafka_to_search",
    ENRICH,
)
"""The pipelines of the repository: the names of their notebooks and jobs. Any source goes with any target."""


class PipelineEnds(NamedTuple):
    """The two ends of a kind of pipeline."""

    source: SourceEnd
    target: TargetEnd


def ends_of(kind: str) -> PipelineEnds | None:
    """The ends of a ``kind`` such as ``kafka_to_delta``; ``None`` for an unknown one."""
    source, _, target = ("enrich_to_delta" if kind == ENRICH else kind.replace("-", "_")).partition("_to_")
    if (source == "enrich") != (kind == ENRICH):
        return None
    if source not in SOURCES or target not in TARGETS or source == target == "delta":
        return None
    if SOURCES[source].query != "stream" and target != "delta":
        return None
    return PipelineEnds(SOURCES[source], TARGETS[target])


def write_pipeline(root: Path, name: str, kind: str, *, is_foreign: bool = False) -> list[Path]:
    """Writes the pipeline ``name`` of a ``kind`` such as ``kafka_to_delta`` into the bundle at ``root``, and returns its files.

    A folder that ``is_foreign``, not this repository, gets the gate too, and a bundle, where it has none. Raises
    :class:`~connectors.ground.errors.Misconfigured`, and writes nothing, for a name that is taken or that no job can have, and
    for an unknown kind.
    """
    ends = ends_of(kind)
    if ends is None:
        sources = ", ".join(name for name in SOURCES if name != ENRICH)
        text = f'must be {ENRICH}, or FROM_to_TO, from {sources}, to {", ".join(TARGETS)}; got "{kind}".'
        raise Misconfigured("connectors new", [Problem("--pipeline", text)])
    files = {root / path: text for path, text in files_of(kind, name).items()}
    shared: dict[Path, str] = {}
    if is_foreign:
        shared = bundle_files(root) | ({root / _GATE: gate()} if ends.target.format == "delta" else {})
    if problems := list(_problems(root, name, files, is_foreign=is_foreign)):
        raise Misconfigured("connectors new", problems)
    files |= {path: text for path, text in shared.items() if not path.exists()}
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return list(files)


def files_of(kind: str, name: str) -> dict[str, str]:
    """The text of each file of the pipeline ``name``, by its path in the bundle."""
    kind = kind.replace("-", "_")
    ends = ends_of(kind)
    assert ends is not None, kind
    source, target = (ENRICH, "delta") if kind == ENRICH else kind.split("_to_")
    pipeline = _Pipeline(name, source, target, *ends)
    files = {
        f"notebooks/pipelines/{name}.ipynb": _notebook("pipeline.txt", pipeline.parameters_of("pipeline"), pipeline.texts()),
        f"notebooks/pipelines/rules/{name}.json": pipeline.rules(),
        f"jobs/{name}.yml": filled("job.yml", pipeline.texts()),
    }
    if pipeline.gate_name != "quality":
        files[f"notebooks/pipelines/{pipeline.gate_name}.ipynb"] = pipeline.gate()
    return files


def gate() -> str:
    """The notebook that judges what any pipeline into Delta has written."""
    pipeline = _Pipeline("kafka_to_delta", "kafka", "delta", SOURCES["kafka"], TARGETS["delta"])
    return pipeline.gate()


@dataclass(frozen=True)
class _Pipeline:
    """A pipeline, and the texts that the skeletons want of it."""

    name: str
    source_name: str
    target_name: str
    source: SourceEnd
    target: TargetEnd

    @property
    def is_into_delta(self) -> bool:
        return self.target_name == "delta"

    @property
    def reads_table(self) -> bool:
        """True if the source is a Delta table."""
        return self.source.format == "delta"

    @property
    def query(self) -> Query:
        return QUERIES[self.source.query]

    @property
    def is_merged(self) -> bool:
        """True if the target follows a database, and nothing is set aside."""
        return bool(self.query.sink)

    @property
    def is_whole(self) -> bool:
        """True if the target is a schema of tables."""
        return bool(self.query.options)

    @property
    def gate_name(self) -> str:
        """The notebook of the gate: one for all that Delta has, but for what is merged."""
        return "quality" if self.is_into_delta and not self.is_merged else f"{self.name}_quality"

    @property
    def key(self) -> Sequence[str]:
        return self.source.key if self.is_into_delta else ("id",)

    @property
    def is_shared(self) -> bool:
        """True if both ends are one system at one address."""
        return self.source_name == self.target.format != "connect"

    @property
    def parameters(self) -> list[Parameter]:
        """All of the job."""
        is_through = not self.is_into_delta and not self.reads_table
        end, own = "target" if self.reads_table else "source", {p.name for p in self.source.parameters}
        optional = {
            Parameter("options", "{}", f"More options of the {end}, as a JSON object"): self.source_name != ENRICH,
            Parameter("target_options", "{}", "More options of the target, as a JSON object"): is_through or self.is_whole,
            Parameter("lookback", self.target.lookback, "The gate looks for rows since; empty: all"): bool(self.target.look),
            Parameter("trigger", "availableNow", "availableNow, continuous or 10 seconds"): self.source.query != "copy",
        }
        return [
            *self.shared,
            *self.source.parameters,
            *(parameter for parameter in self.target_parameters if parameter.name not in own),
            *(parameter for parameter, is_needed in optional.items() if is_needed),
        ]

    def parameters_of(self, task: str) -> list[Parameter]:
        """Those of a notebook of the job, ``pipeline`` or ``quality``."""
        others = ("lookback",) if task == "pipeline" else ("source", "trigger")
        return [parameter for parameter in self.parameters if parameter.name not in others]

    @property
    def shared(self) -> list[Parameter]:
        """Those that the gate has, too."""
        place = "/Volumes/main/connectors/data/pipelines"
        of_job = f"${{var.catalog}}.${{var.schema}}.{self.name}"
        table = Parameter("target", f"main.connectors.{self.name}", "Table, or a folder", of_job)
        if self.is_whole:
            of_job = f"${{var.catalog}}.${{var.schema}}_{self.name}"
            table = Parameter("target", f"main.connectors_{self.name}", "Schema, or a folder", of_job)
        return [
            Parameter("name", self.name, "Name of the pipeline and of its folder"),
            Parameter("workdir", place, "Folder of pipelines", "${var.workdir}/pipelines"),
            *([table] if self.is_into_delta else []),
            Parameter("checks", f"rules/{self.name}.json", "Rules: JSON, or a file"),
        ]

    @property
    def target_parameters(self) -> list[Parameter]:
        """Those of the target, under other names where the source has another meaning for them."""
        taken = {parameter.name for parameter in self.source.parameters} if not self.is_shared else set()
        named = {p.name: replace(p, name=f"target_{p.name}") if p.name in taken else p for p in self.target.parameters}
        if self.is_shared:  # another topic at the same address
            named["target"] = replace(named["target"], default=f"{named['target'].default}_copy")
        return list(named.values())

    def _call(self) -> str:
        """The code that takes the parameters."""
        widgets: dict[str, str] = {}
        if not self.reads_table:
            widgets |= {"source": self.source_name, "address": self.source.address}
        if self.source_name == ENRICH:
            widgets["service"] = self.source.address
        if not self.is_into_delta:
            widgets["target"] = self.target.format
            address = self.target.address
            if self.reads_table:
                widgets["address"] = address
            elif not self.is_shared:
                taken = {parameter.name for parameter in self.source.parameters}
                widgets["target_address"] = f"target_{address}" if address in taken else address
        arguments = ["dbutils", *(f'{name}="{widget}"' for name, widget in widgets.items() if widget)]
        call = f"pipeline = workbench.pipeline({', '.join(arguments)})"
        lines = ",\n    ".join(arguments)
        return call if len(call) <= _LONGEST else f"pipeline = workbench.pipeline(\n    {lines},\n)"

    def texts(self) -> dict[str, str]:
        """What the skeletons have places for."""
        options = "reader.options(**pipeline.read(source))"
        ends = {
            "source_format": self._format(self.source.format),
            "load": f"pipeline.load({options})" if self.reads_table else f"{options}.load()",
            "target_format": self.target.format,
            "target_options": "pipeline.table" if self.is_into_delta else "pipeline.write(target)",
            "shown": "\ndisplay(pipeline.rows(spark), rows=5)" if self.is_into_delta else "",
            "keys": '\n    keys=connectors.foreach_batch("delta", path=pipeline.path("keys")),' if self.target.look else "",
            "writer": self.query.writer,
            "sink": self.query.sink,
        }
        came_out = {"records": self.source.plural, "shown": ends.pop("shown"), "alterations": self.query.alterations}
        return {
            "name": self.name,
            "title": f"From {self.source.title} into {self.target.title}",
            "summary": self.text(self.query.summary),
            "again": "reads everything again" if self.source.query == "copy" else "continues where the last one ended",
            "guarantee": self.guarantee,
            "judgement": self._judgement,
            "pipeline": self._call(),
            "change": self._change(),
            "change_words": self.text(self.query.change),
            "query": filled(f"{self.query.skeleton}.txt", ends).strip(),
            "query_words": self.query.words or self._stream_words,
            "came_out": filled(f"{self.query.outcome}.txt", came_out).strip(),
            "gate": self.gate_name,
            "parameters": "\n".join(
                f"        - name: {parameter.name}\n          default: {json.dumps(parameter.of_job or parameter.default)}"
                for parameter in self.parameters
            ),
        }

    def text(self, text: str) -> str:
        """``text`` of the query with what the ends have at its places."""
        effect = "replace those of the last run" if self.source.query == "copy" else self.target.effect
        return text.format(
            records=self.source.records,
            record=self.source.record,
            plural=self.source.plural,
            decoded="decoded, " if "schema" in self.source.options else "",
            effect=effect,
            promise=self.target.promise,
        )

    def rules(self) -> str:
        """The file of the rules: a list, or by table."""
        lines = [json.dumps(rule) for rule in (*_RULES, {"unique": self.key})]
        if self.is_whole:  # the gate knows the keys
            return f'{{\n  "orders": [{json.dumps(_COUNT)}, {lines[1]}]\n}}\n'
        return "[\n{}\n]\n".format(",\n".join(f"  {line}" for line in lines))

    @property
    def guarantee(self) -> str:
        promise = self.text(self.query.guarantee)
        return f"{promise}; the service may be asked again" if self.source_name == ENRICH else promise

    @property
    def _judgement(self) -> str:
        if self.is_into_delta:
            return "judges what is in the table" + ("s" if self.is_whole else "")
        return "reads the target and judges what is there" if self.target.look else "judges what was handed over"

    @property
    def _stream_words(self) -> str:
        words = []
        if "value.format" in self.source.options:
            words.append("A record that cannot be decoded becomes a dead letter.")
        if not self.is_into_delta:
            words.append(self.target.refusal)
        if self.reads_table:
            words.append("Updates and deletions in the table stop the query, unless `source` has `skipChangeCommits`.")
        return " ".join([*words, "`counts` gets a row for each batch."])

    def _change(self) -> str:
        """The cell with options of both ends and the function that makes rows."""
        dicts = {"source": self.source.options, **({} if self.is_into_delta else {"target": self.target.options})}
        options = "\n".join(
            "\n".join([f"{name} = {{", *(f'    "{option}": {value},' for option, value in values.items()), "}"])
            for name, values in dicts.items()
        )
        if self.is_merged:
            code = [self.source.rows, options, f"target = {self.query.options}" if self.is_whole else ""]
            return self.query.imports + "\n".join(filter(None, code))
        body = self.source.rows if self.is_into_delta else self.source.plain or self.source.rows
        if self.target.added:
            body = f'{body}.selectExpr("*", {self.target.added})'
        imports = "import json\n\n" if "json." in options else ""
        imports += "from connectors import async_io\n\n" if "async_io." in body else ""
        imports += "from pyspark.sql import functions as f\n\n" if "f.from_json" in body else ""
        lines = "\n".join(f"    {line}" for line in body.splitlines())
        return f"{imports}{options}\n\n\ndef rows(records):\n{lines}\n\n\npipeline.checks"

    def gate(self) -> str:
        """The text of the notebook that judges what the pipeline has written."""
        look = self.target.look
        table = "pipeline.rows(spark)" if self.is_into_delta else "table"
        name = '"the table"' if self.is_into_delta else "pipeline.target.name"
        verdict = f"rows = pipeline.checks.validate({table}, name={name})\nrows"
        if look:
            verdict = f"{look}\n{verdict}"
        if not look and not self.is_into_delta:
            verdict = f'print("{self.target.no_look}")'
        if self.is_whole:
            verdict = "display(pipeline.schema.tables(spark))"
        recorded = "what its batches have recorded"
        judged = self.query.judged if self.is_into_delta else "the target" if look else ""
        judged_by = judged if self.is_merged else f"{judged} and by {recorded}" if judged else recorded
        delivered_words = " A dead letter that somebody deletes is not noticed."
        if self.is_into_delta:
            delivered_words += " A record that `letters send` writes into the table itself counts as delivered, not as read."
        elif look:
            delivered_words = " `delivered` counts rows whose keys the target has, so a row whose dead letter somebody drops "
            delivered_words += "is missing."
        reconciled = {
            "delivered_words": delivered_words,
            "with_rows": ", table" if look and not self.is_into_delta else "",
            "lost": "\ndisplay(pipeline.lost(spark, table), rows=5)" if look else "",
        }
        reports = "(rows, places)" if look or self.is_into_delta else "(places,)"
        summary = '*(f"{count:,} {place}" for place, count in counts.first().asDict().items()), sep=", "'
        reports = "(rows,)" if self.is_merged else reports
        summary = 'f"{pipeline.rows(spark).count():,} rows"' if self.is_merged else summary
        enforced = f"for report in {reports}:\n    report.enforce()\nprint({summary})"
        if self.is_whole:
            enforced = "from connectors import quality\n\ndisplay(quality.enforce(*pipeline.schema.verdicts(spark)))"
        texts = {
            "gate_of": "a pipeline" if self.gate_name == "quality" else f"`{self.name}`",
            "pipeline": "pipeline = workbench.pipeline(dbutils)" if self.is_into_delta else self._call(),
            "judged_by": judged_by,
            "look_words": "" if self.is_into_delta or not look else "The rows that are there now.",
            "look": verdict,
            "reconciled": "" if self.is_merged else filled("reconciled.txt", reconciled).strip(),
            "enforced": enforced,
        }
        parameters = self.shared if self.is_into_delta else self.parameters_of("quality")
        return _notebook("quality.txt", parameters, texts)

    @staticmethod
    def _format(name: str) -> str:
        return name if name == "delta" else f"connectors.{name}"


def _problems(root: Path, name: str, files: Mapping[Path, str], *, is_foreign: bool) -> Iterator[Problem]:
    if not (is_foreign or (root / _GATE).is_file()):
        yield Problem("folder", f"must be the root of this repository; {root} has no notebooks/pipelines. Another one: --into.")
    elif not re.fullmatch(r"[a-z][a-z0-9_]*", name) or yaml.safe_load(name) != name:
        text = 'must be a name such as "orders": small letters, digits and underscores, and no word of YAML; got "{}".'
        yield Problem("NAME", text.format(name))
    elif existing := [str(path.relative_to(root)) for path in files if path.exists() or path == root / _GATE]:
        yield Problem("NAME", f"{name} is taken: {', '.join(existing)} exists. Choose another name.")


def _notebook(skeleton: str, parameters: Sequence[Parameter], texts: Mapping[str, str]) -> str:
    """The text of a notebook, without outputs."""
    from nbformat import v4, writes

    make: dict[str, Any] = {"markdown": v4.new_markdown_cell, "code": v4.new_code_cell}
    widgets = "\n".join(parameter.widget() for parameter in parameters)
    parts = _CELL.split(filled(skeleton, {**texts, "bootstrap": BOOTSTRAP.strip(), "widgets": widgets}))[1:]
    cells = [make[kind](text.strip()) for kind, text in zip(parts[::2], parts[1::2], strict=True)]
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
    return f"{writes(v4.new_notebook(cells=cells, metadata=_METADATA))}\n"
