"""All settings of a server, read once. A setting's name, default and help are one declaration.

Sources, the stronger first: command line, environment (`FORKYARD_<NAME>`), the file `forkyard.toml` in the data
directory or at `FORKYARD_CONFIG`, defaults.
"""

from __future__ import annotations

import os
import re
from ipaddress import IPv4Network, ip_address
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AliasChoices, Field, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from forkyard.storage.engine import DatabaseUrl, parse_database_url, sqlite_url

DEFAULT_DATA_DIR = Path("/var/lib/forkyard")

HTTP_PORT = 80
HTTPS_PORT = 443

_LOCAL_DOMAIN = "localhost"
_ON_LOCALHOST = ("localhost", "127.0.0.1", "0.0.0.0", "::", "::1")
"""Values of `host` with which `localhost` leads to the public port."""

_HOST_NAME = re.compile(r"(?!-)[a-z0-9-]{1,63}(?<!-)(\.(?!-)[a-z0-9-]{1,63}(?<!-))*")

Positive = Annotated[int, Field(ge=1)]
NotNegative = Annotated[int, Field(ge=0)]


class Settings(BaseSettings):
    """Settings of `forkyard serve`."""

    model_config = SettingsConfigDict(
        env_prefix="FORKYARD_", extra="forbid", frozen=True, use_attribute_docstrings=True
    )

    data_dir: Path = DEFAULT_DATA_DIR
    """Database, snapshots, images, logs and sockets. One server a directory."""
    database_url: str | None = Field(
        default=None, validation_alias=AliasChoices("FORKYARD_DATABASE_URL", "DATABASE_URL", "database_url")
    )
    """PostgreSQL (`postgresql://...`) or SQLite (`sqlite:///...`); SQLite in the data directory when empty."""
    bin_dir: Path | None = None
    """Where keeper, envd and edge lie; the build directory of the checkout when empty."""
    image_dir: Path | None = None
    """Where `make` put the base image; the build directory of the checkout when empty."""

    host: str = "127.0.0.1"
    """Address the public port listens on. 0.0.0.0 opens it to the network: use TLS then."""
    port: Annotated[int, Field(ge=1, le=65535)] = 3000
    """The public port: API and sandboxes."""
    domain: str = _LOCAL_DOMAIN
    """Public domain: sandboxes are reached at `<port>-<id>.<domain>` too, the API at `api.<domain>`."""
    public_domain: str | None = None
    """`domain` with the port at which SDKs reach it by TLS, where something in front of this server changes that
    port or speaks TLS for it. Follows from the other settings when TLS is on."""
    tls_cert: Path | None = None
    """PEM file with the certificate chain for `*.domain`."""
    tls_key: Path | None = None
    """PEM file with its private key, without a password."""
    tls_port: Annotated[int, Field(ge=0, le=65535)] = 0
    """A second port for TLS, the first one staying plain; 0: TLS on the first port."""

    log_format: Literal["auto", "json", "pretty"] = "auto"
    """`json`, `pretty`, or `auto`: pretty on a terminal."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """`debug`, `info`, `warning` or `error`. Logs go to standard error."""

    keeper: bool = True
    """Start sandboxes through the keeper; off: through the plain `runsc` command line (slower)."""
    subnets: IPv4Network = IPv4Network("10.200.0.0/16")
    """Addresses for sandboxes, a /30 each."""
    internal_allowed: list[IPv4Network] = Field(default_factory=list[IPv4Network])
    """Internal ranges that sandboxes may reach after all. Everything internal is denied otherwise."""
    template_cpus: Positive = 2
    """vCPUs of sandboxes of the base template. Changed, the template is made anew at the next start."""
    template_memory_mb: Positive = 1024
    """Their memory."""
    template_disk_mb: Positive = 10240
    """Their disk."""

    warm_pool: NotNegative = 2
    """Restored sandboxes of the base template kept ready (about 25 MB each)."""
    empty_pool: NotNegative = 4
    """Empty driver processes kept ready for recently used shapes (about 9 MB each)."""

    min_free_disk_mb: NotNegative = 1024
    """Below this much free disk, creates and pauses are refused."""
    max_sandboxes: NotNegative = 0
    """Running sandboxes of this server; 0: no limit. The same for the limits below."""
    max_vcpus: NotNegative = 0
    """Their vCPUs together."""
    max_memory_mb: NotNegative = 0
    """Their memory together."""
    max_disk_mb: NotNegative = 0
    """Their disks together."""
    max_creates_per_second: Annotated[float, Field(ge=0)] = 0
    """Sandboxes created, resumed and forked a second."""
    team_max_sandboxes: NotNegative = 0
    """The same for each team, unless `forkyard teams` says otherwise for it: running sandboxes."""
    team_max_vcpus: NotNegative = 0
    """Their vCPUs together."""
    team_max_memory_mb: NotNegative = 0
    """Their memory together."""
    team_max_disk_mb: NotNegative = 0
    """Their disks together."""
    team_max_creates_per_second: Annotated[float, Field(ge=0)] = 0
    """Sandboxes created, resumed and forked a second."""

    @field_validator("host")
    @classmethod
    def _check_host(cls, host: str) -> str:
        if host != "localhost":
            # Requests to this address by any other name would not be taken for ours.
            try:
                ip_address(host)
            except ValueError:
                raise ValueError("must be an IP address of this machine, or localhost") from None
        return host

    @field_validator("tls_cert", "tls_key")
    @classmethod
    def _from_here(cls, path: Path | None) -> Path | None:
        return path.absolute() if path is not None else None  # The edge works in another directory.

    @field_validator("domain")
    @classmethod
    def _check_domain(cls, domain: str) -> str:
        domain = domain.lower()
        if len(domain) > 200 or not _HOST_NAME.fullmatch(domain):
            raise ValueError("must be a domain name, without a port")
        return domain

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key go together")
        if self.tls_cert is not None and self.domain == _LOCAL_DOMAIN:
            raise ValueError("TLS needs `domain`, the name that the certificate is for: SDKs go by it")
        if self.tls_port and self.tls_cert is None:
            raise ValueError("tls_port needs tls_cert and tls_key")
        if self.tls_port == self.port:
            raise ValueError("port and tls_port must differ; without tls_port, TLS is on port")
        if self.public_domain is not None and not _is_at(self.public_domain, self.domain):
            raise ValueError(f"public_domain must be domain ({self.domain}), or that with :PORT behind it")
        if not self.data_dir.is_absolute():
            raise ValueError("data_dir must be an absolute path")
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (
            init_settings,
            env_settings,
            TomlConfigSettingsSource(settings_cls, _config_file(init_settings())),
        )

    # -- places --------------------------------------------------------------------------------------

    @property
    def database(self) -> DatabaseUrl:
        """Raises InvalidInput when `database_url` is not one."""
        if self.database_url:
            return parse_database_url(self.database_url)
        return sqlite_url(self.data_dir / "forkyard.db")

    @property
    def run_dir(self) -> Path:
        """Sockets and pid files."""
        return self.data_dir / "run"

    @property
    def log_dir(self) -> Path:
        return self.data_dir / "log"

    @property
    def node_dir(self) -> Path:
        """What the keeper sees at a constant path: images, binaries by hash, disks."""
        return self.data_dir / "node"

    @property
    def snapshot_dir(self) -> Path:
        return self.data_dir / "snapshots"

    @property
    def journal_dir(self) -> Path:
        return self.data_dir / "journal"

    @property
    def api_key_file(self) -> Path:
        return self.data_dir / "api-key"

    @property
    def api_socket(self) -> Path:
        return self.run_dir / "api.sock"

    @property
    def edge_socket(self) -> Path:
        return self.run_dir / "edge.sock"

    @property
    def binaries(self) -> Path:
        return self.bin_dir or _checkout() / "build" / "bin"

    @property
    def images(self) -> Path:
        return self.image_dir or _checkout() / "build" / "images"

    # -- addresses -----------------------------------------------------------------------------------

    @property
    def sdk_domain(self) -> str | None:
        """What SDKs know as E2B_DOMAIN, with its port unless that is 443; None when there is no TLS."""
        if self.public_domain is not None:
            return self.public_domain
        if self.tls_cert is None:
            return None
        port = self.tls_port or self.port
        return self.domain if port == HTTPS_PORT else f"{self.domain}:{port}"

    @property
    def plain_url(self) -> str | None:
        """Where the public port is reached without TLS, from this machine at least; None when it speaks TLS."""
        if self.tls_cert is not None and not self.tls_port:
            return None
        host = "localhost" if self.host in _ON_LOCALHOST else self.host
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    @property
    def url(self) -> str:
        """The API's address: by TLS when SDKs use that."""
        return f"https://api.{self.sdk_domain}" if self.sdk_domain else str(self.plain_url)

    @property
    def sdk_variables(self) -> dict[str, str]:
        """The variables that point an unmodified E2B SDK here, but for the key; "" must be unset.

        With TLS every sandbox has a host name, so that SDKs need no E2B_SANDBOX_URL, and must not have one. Without,
        SDKs that have both URLs take the domain for nothing but `get_host()`.
        """
        if self.sdk_domain is None:
            return {"E2B_API_URL": self.url, "E2B_SANDBOX_URL": self.url, "E2B_DOMAIN": self._plain_domain}
        return {"E2B_API_URL": self.url, "E2B_DOMAIN": self.sdk_domain, "E2B_SANDBOX_URL": ""}

    @property
    def _plain_domain(self) -> str:
        """Where names of sandboxes lead without TLS; "" when the public port is not where `*.localhost` leads."""
        if self.domain == _LOCAL_DOMAIN and self.host not in _ON_LOCALHOST:
            return ""
        return self.domain if self.port == HTTP_PORT else f"{self.domain}:{self.port}"


def load(**given: Any) -> Settings:
    """Settings from all sources; `given` (the command line) wins. Raises pydantic.ValidationError."""
    return Settings(**{name: value for name, value in given.items() if value is not None})


def _is_at(public_domain: str, domain: str) -> bool:
    """Whether that is the domain, or the domain with a port behind it."""
    name, colon, port = public_domain.lower().partition(":")
    return name == domain and (not colon or (port.isdecimal() and 0 < int(port) < 65536))


def _config_file(given: dict[str, Any]) -> Path:
    configured = os.environ.get("FORKYARD_CONFIG")
    if configured:
        return Path(configured)
    data_dir = given.get("data_dir") or os.environ.get("FORKYARD_DATA_DIR", DEFAULT_DATA_DIR)
    return Path(data_dir) / "forkyard.toml"


def _checkout() -> Path:
    return Path(__file__).resolve().parents[3]
