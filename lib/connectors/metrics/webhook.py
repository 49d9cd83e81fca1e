"""Alerts that go to a webhook: a chat, a service that calls people, or an address of your own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
    if urlsplit(address).scheme not in ("http", "https") or not urlsplit(address).hostname:
        problems.append(Problem("url", "must be the address of a webhook, as https://hooks.example.org/services/…"))
    if problems:
        raise Misconfigured(_NAME, problems)
    library = client_library("requests", "requests", connector=_NAME, option="url")

    def post(alert: Alert) -> None:
        try:
            library.post(address, json=_FORMS[form](alert, key), timeout=_SECONDS).raise_for_status()
        except library.RequestException as error:  # its text has the address, which is a secret
            answer = getattr(error.response, "status_code", None)
            why = f"answered {answer}" if answer else f"gave no answer ({type(error).__name__})"
            raise Transient(f"the webhook at {urlsplit(address).hostname} {why}") from None

    return post
