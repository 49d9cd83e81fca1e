"""An HTTP API without the API: its recorded answers, replayed from a file that a person can read and write.

The file is a list of exchanges. ``{api}`` stands for the API's address, and a JSON body is JSON, not a text::

    [{"request": {"method": "GET", "path": "/orders?page=1"},
      "response": {"status": 200, "headers": {}, "body": {"rows": [{"id": 7}], "next": "{api}/orders?page=2"}}}]

A recording has no headers of requests, no ``Set-Cookie``, and no value of a field or parameter that is named as secrets are.
What another host answers, to which an answer links, is not recorded.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from ...ground.options import masker
from .exchanges import content_of, masked, name_of, request_of, secrets_of
from .fault_proxy import FaultProxy, Reply, Seen

_API: Final = "{api}"


class RecordedApi(FaultProxy):
    """Replays ``file``; with ``upstream``, such as ``https://api.example.com``, writes it anew from that API's answers.

    ``url`` takes the place of the API's address. A request gets the answers of the same method, path, parameters (in any
    order) and JSON body, one after the other, and then the last one again. A request without an answer gets status 501, and
    its name goes into ``missing``.
    """

    def __init__(self, file: str | Path, upstream: str = "") -> None:
        if urlsplit(upstream).path.strip("/"):
            raise ValueError(f'upstream must be an address without a path, such as https://api.example.com; got "{upstream}"')
        super().__init__(upstream)
        self.missing: list[str] = []
        self._file, self._lock, self._counts = Path(file), threading.Lock(), Counter[str]()
        self._exchanges: list[Any] = [] if upstream else json.loads(self._file.read_text())
        self._secrets: set[str] = set()
        host = re.escape(urlsplit(upstream).netloc)
        self._upstream = re.compile(rf"https?://{host}(:80|:443)?(?![\w:-]|\.\w)", re.IGNORECASE)
        self.rule = self._record if upstream else self._replay

    def _replay(self, seen: Seen, _: object) -> Reply:
        name, names = name_of(request_of(seen)), [name_of(masked(each["request"])) for each in self._exchanges]
        answers = [each["response"] for each, other in zip(self._exchanges, names, strict=True) if name == other]
        with self._lock:
            number = self._counts[name]
            self._counts[name] += 1
            self.missing += [] if answers else [name]
        if not answers:
            nearest = difflib.get_close_matches(name, set(names), 3, 0.0)
            return self._reply({"status": 501, "body": {"error": f"no answer is recorded for {name}", "nearest": nearest}})
        return self._reply(answers[min(number, len(answers) - 1)])

    def _record(self, seen: Seen, forward: Callable[..., Reply]) -> Reply:
        with self._lock:
            self._secrets.update(secrets_of(seen))
            hide = masker(list(self._secrets))
        seen.headers = {key: value for key, value in seen.headers.items() if key.lower() != "accept-encoding"}
        answer = forward()
        headers = {key: value for key, value in answer.headers.items() if key.lower() != "set-cookie"}
        whole = json.dumps({"status": answer.status, "headers": headers, "body": content_of(answer.body)})
        response = json.loads(self._upstream.sub(_API, whole))
        with self._lock:
            self._exchanges.append({"request": masked(request_of(seen), hide), "response": masked(response, hide)})
            draft = self._file.with_name(f"{self._file.name}.draft")
            draft.write_text(json.dumps(self._exchanges, indent=2, ensure_ascii=False) + "\n")
            os.replace(draft, self._file)
        return self._reply({**response, "headers": {**answer.headers, **response["headers"]}})

    def _reply(self, response: Mapping[str, Any]) -> Reply:
        body, kind = response.get("body", ""), {}
        if not isinstance(body, str):
            body, kind = json.dumps(body, ensure_ascii=False), {"Content-Type": "application/json"}
        headers = {key: value.replace(_API, self.url) for key, value in response.get("headers", {}).items()}
        return Reply(response.get("status", 200), body.replace(_API, self.url).encode(), {**kind, **headers})
