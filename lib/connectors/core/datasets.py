"""Names of datasets by OpenLineage's rules: a namespace, which is the system's address, and a name in it.

A system for which the rules have no words gets a namespace of the same form: the system's name and its address.
"""

from __future__ import annotations

import os
from typing import NamedTuple
from urllib.parse import urlsplit

from ..storage.location import is_local, local_path

_OBJECT_STORES = ("s3", "gs", "abfss")


class Dataset(NamedTuple):
    """A dataset outside of Spark. Neither part has a secret."""

    namespace: str
    name: str


def of_server(system: str, address: str, name: str, port: int = 0) -> Dataset:
    """A dataset of the server at ``address``, a URL, or ``host`` or ``host:port``; ``port`` is for an address without one."""
    place = urlsplit(address if "//" in address else f"//{address}").netloc.rpartition("@")[2]
    return Dataset(f"{system}://{place}{f':{port}' if port and ':' not in place else ''}", name)


def of_location(location: str) -> Dataset:
    """The files at ``location``: a path of this machine, or a URL."""
    if is_local(location):
        return Dataset("file", os.path.abspath(local_path(location)))
    scheme, place, path = urlsplit(location)[:3]
    scheme = {"s3a": "s3", "gcs": "gs", "abfs": "abfss"}.get(scheme, scheme)
    if scheme != "abfss":  # there the container is before the host, else a login
        place = place.rpartition("@")[2]
    return Dataset(f"{scheme}://{place}", path.strip("/") if scheme in _OBJECT_STORES else path)
