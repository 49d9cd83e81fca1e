"""The choice of the host that runs a connector: Java, or Python."""

from __future__ import annotations

from importlib import import_module

from .host import ConnectorSettings, SinkHost, SourceHost
from .python_host import PythonSourceHost
from .python_sink_host import PythonSinkHost


def source_host(settings: ConnectorSettings) -> SourceHost:
    """The host for a source: Java where ``pluginPath`` or ``pluginPackages`` is set, else Python."""
    if settings.is_java:
        host: SourceHost = import_module(f"{__package__}.java.source_host").JavaSourceHost(settings)
        return host
    return PythonSourceHost(settings)


def sink_host(settings: ConnectorSettings) -> SinkHost:
    """The host for a sink, chosen as by :func:`source_host`."""
    if settings.is_java:
        host: SinkHost = import_module(f"{__package__}.java.sink_host").JavaSinkHost(settings)
        return host
    return PythonSinkHost(settings)
