"""The storage of files, the only place that knows file systems.

=====================  ===========================================================  ====================================
module                 locations                                                    creates a file only where there is none
=====================  ===========================================================  ====================================
``local``              paths, ``file:``, mounts                                     by a hard link, or a rename that
                                                                                    leaves what exists; on ``/Volumes``
                                                                                    else by the Files API
``s3``                 ``s3://``, ``s3a://``                                        by a conditional write
``hdfs``               ``hdfs://``: Spark's own client, else WebHDFS                by its rename
``object_store``       ``abfss://``, ``gs://`` and what else fsspec reads           by a conditional write
=====================  ===========================================================  ====================================

:class:`~connectors.storage.base.Storage` is what all of them can do. Everything above asks
:func:`~connectors.storage.location.storage_of` for the storage of a location, and never touches a path itself.
"""

from .base import Content, Item, Storage, is_hidden
from .location import check_location, checked_storage, is_local, local_path, storage_of

__all__ = [
    "Content",
    "Item",
    "Storage",
    "check_location",
    "checked_storage",
    "is_hidden",
    "is_local",
    "local_path",
    "storage_of",
]
