"""Host requirements: what is there passes, what is missing is named with what to do about it."""

import os
import socket
import subprocess
import sys
from ipaddress import IPv4Network
from pathlib import Path

import pytest

from forkyard.host import checks, namespaces, remains
from forkyard.host.cgroups import MachineGroups
from forkyard.host.checks import CheckConfig, Status, check_host, require
from forkyard.host.egress import EgressPolicy
from forkyard.host.errors import HostError, RequirementMissing
from forkyard.host.instance import Instance
from forkyard.host.network import HostNetwork
from forkyard.host.processes import spawn_detached
from tests.integration.host import lab

pytestmark = [pytest.mark.root]


async def results(config: CheckConfig | None = None) -> dict[str, checks.CheckResult]:
    return {result.name: result for result in await check_host(config)}


async def test_this_host_has_what_is_needed_and_the_checks_leave_nothing() -> None:
    before = set(namespaces.names("fydoctor"))
    found = await results()
    require(list(found.values()))
    assert found["packet filter"].status is Status.OK
    assert found["networks"].status is Status.OK
    assert set(namespaces.names("fydoctor")) == before
    tables = subprocess.run(["nft", "list", "tables"], capture_output=True, text=True, check=True)  # noqa: ASYNC221
    assert "forkyard_doctor" not in tables.stdout


async def test_a_port_in_use_names_the_program_that_has_it() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        found = (await results(CheckConfig(listen=(("127.0.0.1", port, "--tls-port"),))))["port"]
    assert found.status is Status.FAILED
    assert f"process {os.getpid()} (" in found.sentence
    assert "--tls-port" in found.fix
    with pytest.raises(RequirementMissing, match=f"port {port}"):
        require([found])
    assert (await results(CheckConfig(listen=(("127.0.0.1", port, "--tls-port"),))))[
        "port"
    ].status is Status.OK


async def test_without_nft_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "_SBIN", {"PATH": "/nowhere"})
    found = await results()
    assert found["packet filter"].status is Status.FAILED
    assert "apt-get install nftables" in found["packet filter"].fix
    assert found["other packet filters"].status is Status.FAILED


async def test_a_range_inside_of_a_network_of_the_host_is_a_warning(internet: lab.Internet) -> None:
    route = ["10.240.0.0/12", "via", str(internet.address)]
    subprocess.run(["ip", "route", "add", *route], check=True)  # noqa: ASYNC221
    try:
        found = (await results(CheckConfig(slot_range=IPv4Network("10.241.0.0/16"))))["slot range"]
    finally:
        subprocess.run(["ip", "route", "del", *route], check=True)  # noqa: ASYNC221
    assert found.status is Status.WARNING
    assert internet.interface in found.found


async def test_a_forward_chain_that_drops_is_a_warning_until_it_lets_slots_pass() -> None:
    table = "chktest"
    rules = f"table inet {table} {{ chain f {{ type filter hook forward priority 5; policy drop; }}\n}}"
    other = f'table inet {table} {{ chain g {{ iifname "fy*" accept; }}\n}}'
    # It would drop what other tests forward, so it is only looked at in a namespace of its own.
    code = (
        "import asyncio, sys, subprocess\n"
        "from forkyard.host.checks import check_host\n"
        "for rules in sys.argv[1:]:\n"
        "    subprocess.run(['nft', rules], check=True)\n"
        "    found = {r.name: r for r in asyncio.run(check_host())}['other packet filters']\n"
        "    print(found.status, 'iptables' in found.fix)\n"
    )  # fmt: skip
    done = subprocess.run(  # noqa: ASYNC221
        ["unshare", "-n", sys.executable, "-c", code, rules, other],
        capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": "src"},
    )  # fmt: skip
    assert done.stdout.split() == ["warning", "True", "ok", "False"]


async def test_without_root_it_says_so() -> None:
    code = "import asyncio; from forkyard.host.checks import *; print(asyncio.run(check_host())[0].sentence)"
    done = subprocess.run(  # noqa: ASYNC221
        ["setpriv", "--reuid", "65534", "--clear-groups", sys.executable, "-c", code],
        capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": "src"},
    )  # fmt: skip
    if done.returncode != 0:
        pytest.skip(f"another user cannot run this interpreter: {done.stderr[-200:]}")
    assert "user 65534" in done.stdout
    assert "sudo" in done.stdout


async def test_only_what_a_dead_instance_left_is_cleaned(tmp_path: Path) -> None:
    with Instance.open(tmp_path / "d") as opened:
        instance = opened.id
        network = HostNetwork(instance, opened.directory)
        await network.open({})
        await network.create(EgressPolicy())
        keeper = await spawn_detached(
            ["/bin/sleep", "1000"], output=tmp_path / "log", cgroup=f"forkyard-{instance}-keeper"
        )
        MachineGroups(instance).prepare()
        await network.close()
        assert not (await one(instance)).dead  # a server runs
    stopped = await one(instance)
    assert not stopped.dead  # only stopped: its sandboxes wait for the next start
    with pytest.raises(HostError, match="is not dead"):
        await remains.clean(stopped)
    assert keeper.alive()
    (tmp_path / "d" / "instance").unlink()
    dead = await one(instance)
    assert dead.dead
    assert {name.partition(" ")[0] for name in dead.found} >= {
        "table",
        "reservation",
        f"forkyard-{instance}-keeper",
    }
    await remains.clean(dead)
    await remains.clean(dead)
    assert not keeper.alive()
    assert lab.leftovers(instance) == []
    assert [r for r in await remains.find_remains() if r.instance == instance] == []


async def one(instance: str) -> remains.Remains:
    (found,) = [r for r in await remains.find_remains() if r.instance == instance]
    return found
