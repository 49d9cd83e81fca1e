"""The jobs of a bundle as text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .graph import in_order
from .loading import Bundle
from .model import Job


def listed(bundle: Bundle) -> str:
    """Each job with its tasks in the order of a run, its parameters with their defaults, and when it is started."""
    return "\n\n".join("\n".join(_job(bundle, job)) for job in bundle.jobs.values()) or "no jobs"


def _job(bundle: Bundle, job: Job) -> Iterator[str]:
    yield f"{job.key}  ({job.name})"
    yield f"  tasks       {', '.join(task.key for task in in_order(job.tasks))}"
    parameters = ", ".join(f"{name}={default}" for name, default in job.parameters.items())
    yield f"  parameters  {parameters or 'none'}"
    yield f"  schedule    {_schedule(bundle, job.config)}"


def _schedule(bundle: Bundle, config: dict[str, Any]) -> str:
    schedule, trigger, continuous = (config.get(name) or {} for name in ("schedule", "trigger", "continuous"))
    if schedule:
        when = f"{schedule.get('quartz_cron_expression')} {schedule.get('timezone_id', '')}".strip()
    elif continuous:
        when = "continuous"
    elif trigger:
        when = "when triggered by " + ", ".join(key for key in trigger if key != "pause_status")
    else:
        return "none"
    status = (schedule or continuous or trigger).get("pause_status")
    paused = status == "PAUSED" or (status is None and bundle.development)
    return f"{when}, paused in target {bundle.target}" if paused else when
