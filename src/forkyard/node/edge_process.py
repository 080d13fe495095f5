"""What the edge is started with, and whether the one that runs already was started with the same."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from forkyard.host.processes import ProcessHandle, kill, listener_of, wait_exit
from forkyard.node.edge_client import EdgeAway, EdgeClient
from forkyard.node.settings import Settings

_END_S = 10.0

PortToTake = tuple[str, int, str]
"""Address, port, and the option that chooses the port."""


def edge_arguments(settings: Settings) -> list[str]:
    """The command line of the edge, without the program."""
    arguments = [
        "--listen",
        _address(settings.host, settings.port),
        "--control",
        str(settings.edge_socket),
        "--api",
        str(settings.api_socket),
        "--domain",
        settings.domain,
        "--log",
        str(settings.log_dir / "edge.log"),
    ]
    if settings.tls_cert is not None and settings.tls_key is not None:
        arguments += ["--tls-cert", str(settings.tls_cert), "--tls-key", str(settings.tls_key)]
        if settings.tls_port:
            arguments += ["--tls-listen", _address(settings.host, settings.tls_port)]
    return arguments


@dataclass(frozen=True, slots=True)
class RunningEdge:
    """An edge that listens on the control socket of the data directory, whether it answers or hangs."""

    process: ProcessHandle
    arguments: tuple[str, ...]
    """As `edge_arguments` gives them."""

    def fits(self, settings: Settings) -> bool:
        """Whether it does what the settings say: ports, domain, certificate."""
        return list(self.arguments) == edge_arguments(settings)


async def find_edge(settings: Settings) -> RunningEdge | None:
    """The edge that runs for this data directory."""
    process = await asyncio.to_thread(listener_of, settings.edge_socket)
    if process is None:
        return None
    try:
        command = await asyncio.to_thread(Path(f"/proc/{process.pid}/cmdline").read_bytes)
    except OSError:
        return None
    return RunningEdge(process, tuple(command.decode(errors="replace").rstrip("\0").split("\0")[1:]))


def ports_to_take(settings: Settings, edge: RunningEdge | None) -> tuple[PortToTake, ...]:
    """The ports that an edge with these settings needs and the one that runs does not have."""
    wanted = [(settings.host, settings.port, "--port")]
    if settings.tls_port:
        wanted.append((settings.host, settings.tls_port, "--tls-port"))
    held = edge.arguments if edge is not None else ()
    return tuple(port for port in wanted if _address(port[0], port[1]) not in held)


async def end_edge(settings: Settings, edge: RunningEdge) -> None:
    """End it, because the settings have changed; the supervisor starts another. Its open connections end.

    Only for whoever holds the instance. One that does not end by itself is killed. Raises EdgeAway when it lives on.
    """
    client = EdgeClient(settings.edge_socket)
    await client.open()
    try:
        await client.shutdown()
        async with asyncio.timeout(_END_S):
            await wait_exit(edge.process)
    except (EdgeAway, TimeoutError):
        if not await kill(edge.process):
            raise EdgeAway(
                f"the edge (process {edge.process.pid}) has other settings than these, and does not end"
            ) from None
    finally:
        await client.close()


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
