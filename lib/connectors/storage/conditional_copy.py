"""Copies of objects that their service makes on its side, in one step, and only where the target does not exist.

``system`` is the file system of fsspec, the paths are its own. Errors are those of the clients.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from importlib import import_module
from typing import Any, Final

SYNCHRONOUS: Final = 256 << 20
"""Bytes that Azure copies before it answers: https://learn.microsoft.com/rest/api/storageservices/copy-blob-from-url.

A longer copy goes on after the answer, with an incomplete blob in sight.
"""


def rewrite_on_google(system: Any, source: str, target: str) -> None:
    """Copies an object of ``gcsfs`` on Google's side, of any size."""
    (bucket, key, _), (to_bucket, to_key, _) = system.split_path(source), system.split_path(target)
    path, headers = "b/{}/o/{}/rewriteTo/b/{}/o/{}", {"Content-Type": "application/json"}
    condition = {"ifGenerationMatch": "0"}
    answer: dict[str, Any] = {}
    while not answer.get("done"):  # a large object between storage classes takes several requests
        token = answer.get("rewriteToken")
        arguments = (bucket, key, to_bucket, to_key)
        answer = system.call("POST", path, *arguments, headers=headers, rewriteToken=token, json_out=True, **condition)


def copy_on_azure(system: Any, source: str, target: str) -> bool:
    """Copies a blob in one step. False if the service cannot read the source with what this process may show it."""
    from fsspec.asyn import sync

    try:
        sync(system.loop, _copy_blob, system, source, target)
    except Exception as error:
        if getattr(error, "error_code", None) != "CannotVerifyCopySource":
            raise
        return False
    return True


async def _copy_blob(system: Any, source: str, target: str) -> None:
    (container, blob, _), (to_container, to_blob, _) = system.split_path(source), system.split_path(target)
    missing = import_module("azure.core").MatchConditions.IfMissing
    async with system.service_client.get_blob_client(container, blob) as staged:
        url, proof = await _readable(staged)
    async with system.service_client.get_blob_client(to_container, to_blob) as final:
        await final.start_copy_from_url(url, requires_sync=True, match_condition=missing, **proof)


async def _readable(blob: Any) -> tuple[str, dict[str, str]]:
    """The URL of a blob for the service itself, which reads only what a signature or a token lets it read."""
    credential = blob.credential
    if key := getattr(credential, "account_key", None):
        azure = import_module("azure.storage.blob")
        names = (blob.account_name, blob.container_name, blob.blob_name)
        until = datetime.now(timezone.utc) + timedelta(hours=1)
        signature = azure.generate_blob_sas(*names, account_key=key, permission="r", expiry=until)
        return f"{blob.url}?{signature}", {}
    if hasattr(credential, "get_token"):
        token = await credential.get_token("https://storage.azure.com/.default")
        return blob.url, {"source_authorization": f"Bearer {token.token}"}
    return blob.url, {}  # with the signature in the options, if there is one
