"""Where a server is reached: what the settings make of it, what `serve` prints, and which ports the start checks."""

import os
import shlex
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme
from pydantic import ValidationError

from forkyard.host.checks import Status
from forkyard.host.processes import ProcessHandle
from forkyard.node.announcement import announcement
from forkyard.node.edge_process import RunningEdge, edge_arguments, ports_to_take
from forkyard.node.preflight import check_certificate
from forkyard.node.settings import Settings, load

TLS = {"tls_cert": "/c.pem", "tls_key": "/k.pem"}


def settings(**given: object) -> Settings:
    return load(data_dir=Path("/data dir"), **given)


def exported(given: Settings) -> dict[str, str | None]:
    """What a shell makes of the printed commands; the key is not read."""
    commands = [line for line in announcement(given, 1).splitlines() if line.startswith("  ")]
    script = "\n".join(c for c in commands if "E2B_API_KEY" not in c)
    done = subprocess.run(
        ["sh", "-c", f"{script}\nenv"],
        env={"E2B_SANDBOX_URL": "http://old", "E2B_DOMAIN": "old", "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=True,
    )
    found = dict(line.split("=", 1) for line in done.stdout.splitlines())
    return {name: found.get(name) for name in ("E2B_API_URL", "E2B_SANDBOX_URL", "E2B_DOMAIN")}


@pytest.mark.parametrize(
    ("given", "url", "domain"),
    [
        ({}, "http://localhost:3000", "localhost:3000"),
        ({"host": "0.0.0.0", "port": 3100}, "http://localhost:3100", "localhost:3100"),
        ({"host": "10.1.2.3", "domain": "a.test", "port": 80}, "http://10.1.2.3:80", "a.test"),
        # Names below localhost do not lead there.
        ({"host": "fd00::1"}, "http://[fd00::1]:3000", None),
    ],
)
def test_without_tls_both_urls_are_the_plain_one(
    given: dict[str, object], url: str, domain: str | None
) -> None:
    found = settings(**given)
    assert exported(found) == {"E2B_API_URL": url, "E2B_SANDBOX_URL": url, "E2B_DOMAIN": domain}
    assert found.sdk_domain is None


@pytest.mark.parametrize(
    ("given", "domain", "plain"),
    [
        ({**TLS, "domain": "A.test"}, "a.test:3000", None),
        ({**TLS, "domain": "a.test", "port": 443}, "a.test", None),
        ({**TLS, "domain": "a.test", "tls_port": 8443}, "a.test:8443", "http://localhost:3000"),
        ({**TLS, "domain": "a.test", "tls_port": 443}, "a.test", "http://localhost:3000"),
        ({**TLS, "domain": "a.test", "public_domain": "a.test"}, "a.test", None),
        ({"domain": "a.test", "public_domain": "a.test:444"}, "a.test:444", "http://localhost:3000"),
    ],
)
def test_with_tls_it_is_the_domain_with_its_port(
    given: dict[str, object], domain: str, plain: str | None
) -> None:
    found = settings(**given)
    assert exported(found) == {
        "E2B_API_URL": f"https://api.{domain}",
        "E2B_SANDBOX_URL": None,
        "E2B_DOMAIN": domain,
    }
    assert (found.sdk_domain, found.plain_url) == (domain, plain)
    assert plain is None or plain in announcement(found, 1)


def test_the_key_file_is_quoted_for_the_shell() -> None:
    line = next(line for line in announcement(settings(), 1).splitlines() if "E2B_API_KEY" in line)
    assert shlex.quote("/data dir/api-key") in line


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (TLS, "TLS needs `domain`"),
        ({"tls_cert": "/c.pem"}, "go together"),
        ({"tls_port": 8443}, "tls_port needs tls_cert"),
        ({**TLS, "domain": "a.test", "tls_port": 3000}, "must differ"),
        ({"domain": "a.test", "public_domain": "b.test"}, "public_domain must be domain"),
        ({"domain": "a.test", "public_domain": "a.test:x"}, "public_domain must be domain"),
        ({"domain": "a.test:443"}, "without a port"),
        ({"host": "server.local"}, "must be an IP address"),
        ({"port": 0}, "greater than or equal to 1"),
    ],
)
def test_addresses_that_no_sdk_would_reach_are_refused(given: dict[str, object], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        settings(**given)


def test_the_start_checks_every_port_that_the_running_edge_does_not_have() -> None:
    plain = settings()
    tls = settings(**TLS, domain="a.test", tls_port=8443)
    running = RunningEdge(ProcessHandle.of(os.getpid()), tuple(edge_arguments(plain)))
    assert ports_to_take(tls, None) == (
        ("127.0.0.1", 3000, "--port"),
        ("127.0.0.1", 8443, "--tls-port"),
    )
    assert ports_to_take(tls, running) == (("127.0.0.1", 8443, "--tls-port"),)
    assert ports_to_take(plain, running) == ()
    assert running.fits(plain)
    assert not running.fits(tls)
    assert not running.fits(settings(domain="a.test"))


def test_the_edge_is_told_of_an_address_with_colons_in_brackets() -> None:
    assert edge_arguments(settings(host="::"))[:2] == ["--listen", "[::]:3000"]


def test_certificate_files_are_found_from_wherever_the_edge_works() -> None:
    found = settings(tls_cert="c.pem", tls_key="k.pem", domain="a.test")
    assert found.tls_cert == Path.cwd() / "c.pem"


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


async def check(folder: Path, issued: trustme.LeafCert, key: trustme.LeafCert) -> str | None:
    """What the check says against a certificate for a.test; None when it is well."""
    issued.cert_chain_pems[0].write_to_path(folder / "c.pem")
    key.private_key_pem.write_to_path(folder / "k.pem")
    found = await check_certificate(
        settings(domain="a.test", tls_cert=folder / "c.pem", tls_key=folder / "k.pem")
    )
    assert found is not None
    return None if found.status is Status.OK else found.found


async def test_a_certificate_that_sdks_would_refuse_is_found_before_the_start(
    tmp_path: Path, authority: trustme.CA
) -> None:
    good = authority.issue_cert("*.a.test")
    bare = authority.issue_cert("a.test")
    other = authority.issue_cert("*.b.test")
    assert await check(tmp_path, good, good) is None
    for wrong in (bare, other):
        assert "is not for *.a.test" in str(await check(tmp_path, wrong, wrong))
    assert "cannot be used" in str(await check(tmp_path, good, other))
    (tmp_path / "c.pem").unlink()
    gone = await check_certificate(
        settings(domain="a.test", tls_cert=tmp_path / "c.pem", tls_key=tmp_path / "k.pem")
    )
    assert gone is not None
    assert "No such file" in gone.found


async def test_an_expired_certificate_is_found_before_the_start(
    tmp_path: Path, authority: trustme.CA
) -> None:
    past = datetime(2020, 1, 1, tzinfo=UTC)
    old = authority.issue_cert("*.a.test", not_before=past, not_after=past + timedelta(days=30))
    assert "has expired" in str(await check(tmp_path, old, old))
