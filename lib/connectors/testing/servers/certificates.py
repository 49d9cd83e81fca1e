"""Certificates of a made-up authority, for servers that speak TLS."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from .base import HOST, Unavailable


@dataclass(frozen=True)
class Certificates:
    """Files in PEM: the ``authority`` that a client trusts, and a server's certificate ``chain`` with its ``key`` (PKCS 8)."""

    authority: Path
    chain: Path
    key: Path

    def server_context(self) -> ssl.SSLContext:
        """For a server in this process."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.chain, self.key)
        return context


def certificates(folder: Path, host: str = HOST) -> Certificates:
    """New ones in ``folder``, by an authority that nobody knows, for a server that is called ``host``.

    Raises :class:`Unavailable` without the package ``trustme``.
    """
    try:
        import trustme
        from cryptography.hazmat.primitives import serialization as forms
    except ImportError as missing:
        raise Unavailable(f"{missing.name} is not installed; pip install trustme") from None
    folder.mkdir(parents=True, exist_ok=True)
    made = Certificates(*(folder / name for name in ("authority.pem", "server.pem", "server.key")))
    authority = trustme.CA(key_type=trustme.KeyType.RSA)
    server = authority.issue_cert(host, key_type=trustme.KeyType.RSA)
    authority.cert_pem.write_to_path(str(made.authority))
    made.chain.write_bytes(b"".join(part.bytes() for part in server.cert_chain_pems))
    key = forms.load_pem_private_key(server.private_key_pem.bytes(), None)
    made.key.write_bytes(key.private_bytes(forms.Encoding.PEM, forms.PrivateFormat.PKCS8, forms.NoEncryption()))
    return made
