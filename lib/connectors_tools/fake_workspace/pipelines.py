"""The pipelines service of the fake workspace, version 2.0: pipelines, and what it refuses of them."""

from __future__ import annotations

import copy
import re
import threading
import time
import uuid
from collections.abc import Mapping
from typing import Any, Final

from .calls import Refusal, Request, invalid, missing

_MOST: Final = 100
_REQUEST_ALONE: Final = ("allow_duplicate_names", "dry_run", "expected_last_modified", "parameters", "run_as")
_BUNDLE_ALONE: Final = ("permissions", "lifecycle", "cascade_on_destroy")


class Pipelines:
    """Pipelines by id, as ``pipelines/get`` shows them. ``tables`` has the ids of those whose tables a deletion has left."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.pipelines: dict[str, dict[str, Any]] = {}
        self.tables: list[str] = []

    def create(self, request: Request) -> dict[str, Any]:
        number = str(uuid.uuid4())
        with self._lock:
            self._keep(number, request.json, request.user)
        return {"pipeline_id": number}

    def update(self, request: Request) -> dict[str, Any]:
        """The pipeline has the settings that are sent, and no others."""
        with self._lock:
            self._keep(self.existing(request.names[0]), request.json, request.user)
        return {}

    def get(self, request: Request) -> dict[str, Any]:
        with self._lock:
            return copy.deepcopy(self.pipelines[self.existing(request.names[0])])

    def delete(self, request: Request) -> dict[str, Any]:
        with self._lock:
            number = self.existing(request.names[0])
            del self.pipelines[number]
            self.tables += [number] if request.query.get("cascade") == "false" else []
        return {}

    def list_pipelines(self, request: Request) -> dict[str, Any]:
        """A page of the pipelines by id, without their specifications; perhaps only those whose name is like a pattern."""
        limit, start = int(request.query.get("max_results", 25)), int(request.query.get("page_token", 0))
        text = request.query.get("filter", "name LIKE '%'")
        pattern = re.fullmatch(r"name LIKE '([^']*)'", text)
        if not 0 < limit <= _MOST or pattern is None:
            raise invalid(f"Only a page of {_MOST} and a filter by name are supported; got {limit} and {text}.")
        like = "".join({"%": ".*", "_": "."}.get(sign, re.escape(sign)) for sign in pattern[1])
        with self._lock:
            shown = [self.pipelines[number] for number in sorted(self.pipelines)]
        fields = ("pipeline_id", "name", "state", "creator_user_name", "run_as_user_name")
        statuses = [{name: entry[name] for name in fields} for entry in shown if re.fullmatch(like, entry["name"])]
        following = {"next_page_token": str(start + limit)} if start + limit < len(statuses) else {}
        return {"statuses": statuses[start : start + limit], **following}

    def existing(self, number: str) -> str:
        """The id of a pipeline; raises :class:`Refusal` where there is none."""
        if number not in self.pipelines:
            raise missing(f"The specified pipeline {number} was not found.")
        return number

    def _keep(self, number: str, body: dict[str, Any], user: str) -> None:
        _check(body)
        twins = [other for other, entry in self.pipelines.items() if entry["name"] == body["name"] and other != number]
        if twins and not body.get("allow_duplicate_names"):
            text = f"The pipeline name '{body['name']}' is already used by another pipeline. This check can be skipped"
            raise Refusal(409, "RESOURCE_CONFLICT", f"{text} by setting `allow_duplicate_names = true` in the request.")
        spec = {name: value for name, value in body.items() if name not in _REQUEST_ALONE}
        spec |= {"id": number} if spec.get("catalog") else {"id": number, "storage": f"dbfs:/pipelines/{number}"}
        beside: dict[str, Any] = {name: body[name] for name in ("parameters", "run_as") if name in body}
        self.pipelines[number] = {
            "pipeline_id": number, "name": body["name"], "spec": spec, "state": "IDLE", "creator_user_name": user,
            "run_as_user_name": user, "last_modified": int(time.time() * 1000), **beside,
        }  # fmt: skip


def _check(body: Mapping[str, Any]) -> None:
    """Refuses fields that belong to a bundle, paths that lead nowhere in a workspace, and values that are no text."""
    libraries = [part for library in body.get("libraries", []) for part in library.values() if isinstance(part, dict)]
    paths = [path for part in libraries for path in part.values()] + [body.get("root_path", "/")]
    if wrong := [path for path in paths if not str(path).startswith("/")]:
        raise invalid(f"Only absolute paths (starting with '/') are supported; got {wrong[0]}.")
    if wrong := [name for name in _BUNDLE_ALONE if name in body]:
        raise invalid(f"Unrecognized field: {wrong[0]}.")
    if not all(isinstance(value, str) for value in body.get("configuration", {}).values()):
        raise invalid("The values of configuration must be texts.")
    if "." in str(body.get("target", "")) or (body.get("target") and body.get("schema")):
        raise invalid("The pipeline needs one of schema and target, and target is no name with a period.")
    if body.get("serverless") and body.get("clusters"):
        raise invalid("Cluster settings cannot be provided for a serverless pipeline.")
