"""Whether a certificate does what SDKs will ask of it. OpenSSL judges: a handshake with ourselves, in memory."""

from __future__ import annotations

import ssl
from pathlib import Path

_NO_CHECK_TIME = 0x200000
"""X509_V_FLAG_NO_CHECK_TIME; Python has no name for it."""


def certificate_problem(certificate: Path, key: Path, domain: str) -> str | None:
    """Why SDKs could not use it for `api.<domain>` and the sandboxes' names; None when they can. Blocks.

    Who issued it is not judged, because that is for each client to trust.
    """
    try:
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.load_cert_chain(certificate, key, password=_no_password)
        chain = certificate.read_text()
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        return f"{certificate} and {key} cannot be used: {error}"
    for name in (f"api.{domain}", f"49983-sandbox.{domain}"):
        if not _accepted(server, chain, name, any_time=True):
            return f"the certificate in {certificate} is not for *.{domain}"
    if not _accepted(server, chain, f"api.{domain}", any_time=False):
        return f"the certificate in {certificate} has expired, or is not valid yet"
    return None


def _no_password() -> str:
    raise ValueError("the key is encrypted")


def _accepted(server: ssl.SSLContext, chain: str, name: str, *, any_time: bool) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=chain)
    # Every certificate of the chain counts as an authority, so that only name and time are left to judge.
    context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
    if any_time:
        context.verify_flags |= ssl.VerifyFlags(_NO_CHECK_TIME)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        context.wrap_bio(to_client, to_server, server_hostname=name),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    # Hello, answer, finished: two turns of each end, and one to spare.
    for end in ends * 3:
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            continue
        except ssl.SSLError:
            return False
    return True
