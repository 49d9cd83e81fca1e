"""Alerts that go to a webhook: a chat, a service that calls people, or an address of your own."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import asdict
from typing import Any, Final
from urllib.parse import urlsplit

from ..ground.clients import client_library
from ..ground.errors import Misconfigured, Problem, Transient
from ..ground.secrets import filled
from .alerts import Alert

_NAME: Final = "metrics.webhook"
_SECONDS: Final = 10.0
_PAGERDUTY: Final = "https://events.pagerduty.com/v2/enqueue"


def _line(alert: Alert) -> str:
    about = " ".join(filter(None, (alert.component, alert.partition)))
    return f"{alert.rule}: query {alert.query}, batch {alert.batch}{about and f', {about}'}: {alert.message}"


def _slack(alert: Alert, key: str) -> dict[str, Any]:
    return {"text": _line(alert)}


def _teams(alert: Alert, key: str) -> dict[str, Any]:
    block = {"type": "TextBlock", "text": _line(alert), "wrap": True}
    card = {"type": "AdaptiveCard", "version": "1.4", "body": [block]}
    return {"type": "message", "attachments": [{"contentType": "application/vnd.microsoft.card.adaptive", "content": card}]}


def _pagerduty(alert: Alert, key: str) -> dict[str, Any]:
    payload = {"summary": _line(alert)[:1024], "source": alert.query, "severity": "error", "custom_details": asdict(alert)}
    same = "/".join((alert.rule, alert.query, alert.component, alert.partition))[:255]
    return {"routing_key": key, "event_action": "trigger", "dedup_key": same, "payload": payload}


def _json(alert: Alert, key: str) -> dict[str, Any]:
    return asdict(alert)


_is_posting: ContextVar[bool] = ContextVar("is_posting", default=False)


def _has_no_address(record: logging.LogRecord) -> bool:
    """False for what the HTTP client logs during a post: it has the address, which is the secret of most webhooks."""
    return not _is_posting.get()


_FORMS: Final[Mapping[str, Callable[[Alert, str], dict[str, Any]]]] = {
    "json": _json,
    "slack": _slack,
    "teams": _teams,
    "pagerduty": _pagerduty,
}


def webhook(url: str = "", *, form: str = "json", key: str = "") -> Callable[[Alert], None]:
    """A function for ``on_alert`` of :func:`~connectors.metrics.watch` that posts each alert to ``url``.

    ``form``: ``slack``, ``teams`` (a workflow's webhook), ``pagerduty``, whose ``key`` is the integration's and which needs no
    ``url``, or ``json``, an object with the fields of :class:`Alert`. ``url`` and ``key`` may have ``{{secrets/scope/key}}``. A
    post that fails is a warning in the log and is not tried again; the query does not wait for it.
    Raises :class:`~connectors.ground.errors.Misconfigured`.
    """
    problems = []
    if form not in _FORMS:
        problems.append(Problem("form", f'must be one of {", ".join(_FORMS)}; got "{form}".'))
    if form == "pagerduty" and not key:
        problems.append(Problem("key", "missing; give the integration key of PagerDuty."))
    address = url or (_PAGERDUTY if form == "pagerduty" else "")
    try:
        address, key = filled(address), filled(key)
    except ValueError as missing:
        problems.append(Problem("url", f"must be {missing}."))
    if not _is_url(address):
        problems.append(Problem("url", "must be the address of a webhook, as https://hooks.example.org/services/…"))
    if problems:
        raise Misconfigured(_NAME, problems)
    library = client_library("requests", "requests", connector=_NAME, option="url")
    place = urlsplit(address)
    for log in ("urllib3.connection", "urllib3.connectionpool"):
        logging.getLogger(log).addFilter(_has_no_address)

    def post(alert: Alert) -> None:
        body = _FORMS[form](alert, key)
        posting = _is_posting.set(True)
        try:
            # A redirection leads to a page of a login, with the key. The text of an answer may have no end.
            with library.post(address, json=body, timeout=_SECONDS, allow_redirects=False, stream=True) as answer:
                why = "" if 200 <= answer.status_code < 300 else f"answered {answer.status_code}"
        except (library.RequestException, ValueError) as error:  # its text has the address, which is a secret
            why = f"gave no answer ({type(error).__name__})"
        finally:
            _is_posting.reset(posting)
        if why:
            raise Transient(f"the webhook at {place.hostname} {why}")

    return post


def _is_url(address: str) -> bool:
    try:
        return urlsplit(address).scheme in ("http", "https") and bool(urlsplit(address).hostname)
    except ValueError:  # half an address of IPv6
        return False
