"""What `doctor` says of each thing that it looks at itself; the checks of the host have tests of their own."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forkyard.host.checks import CheckResult, Status
from forkyard.host.errors import DataDirectoryInUse, HostError
from forkyard.host.remains import Remains
from forkyard.node import doctor, preflight
from forkyard.node.preflight import PROGRAMS
from forkyard.node.settings import Settings
from forkyard.node.versions import Version


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """A machine with everything in place."""
    (tmp_path / "bin").mkdir()
    for name in PROGRAMS:
        (tmp_path / "bin" / name).touch()
    (tmp_path / "images").mkdir()
    image = {"name": "base", "image": "a" * 70, "sha256": "f" * 64, "size": 3 << 20, "user": "user"}
    record = {**image, "workdir": "/home/user", "env": {}, "envd": "", "packages": ""}
    fields = preflight.BaseImage.__dataclass_fields__
    (tmp_path / "images" / "base.json").write_text(
        json.dumps({name: record.get(name, "") for name in fields})
    )
    return Settings(data_dir=tmp_path / "data", bin_dir=tmp_path / "bin", image_dir=tmp_path / "images")


@pytest.fixture(autouse=True)
def host(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A host without remains and versions; tests put some in."""
    found: dict[str, Any] = {"remains": [], "versions": [], "cleaned": [], "removed": []}

    def answers(name: str) -> Callable[..., Any]:
        async def answer(*_arguments: object) -> Any:
            if isinstance(found[name], Exception):
                raise found[name]
            return found[name]

        return answer

    async def check_host(*_arguments: object) -> list[CheckResult]:
        return [CheckResult("kernel", Status.OK, "new")]

    async def clean(remains: Remains) -> None:
        found["cleaned"].append(remains.instance)

    monkeypatch.setattr(doctor, "check_machine", check_host)
    monkeypatch.setattr(doctor, "find_remains", answers("remains"))
    monkeypatch.setattr(doctor, "clean", clean)
    monkeypatch.setattr(doctor, "list_versions", answers("versions"))
    monkeypatch.setattr(doctor, "remove_unneeded", answers("removed"))
    return found


async def look(settings: Settings, name: str) -> CheckResult:
    (found,) = [result for result in await doctor.examine(settings) if result.name == name]
    return found


def version(**given: Any) -> Version:
    values = {"kind": "envd", "sha256": "e" * 64, "path": Path("/e"), "size": 1 << 20}
    return Version(**{**values, "current": False, "snapshots": 0, "machines": 0, **given})


async def test_all_is_well(settings: Settings) -> None:
    results = await doctor.examine(settings)
    assert [(result.name, result.status) for result in results] == [
        ("programs", Status.OK),
        ("base image", Status.OK),
        ("kernel", Status.OK),
    ]
    assert results[1].found == f"{'a' * 12}, 3 MiB"
    assert not any(result.why or result.fix for result in results)


async def test_programs_that_are_not_built(settings: Settings) -> None:
    (settings.binaries / "edge").unlink()
    found = await look(settings, "programs")
    assert (found.status, found.found) == (Status.FAILED, f"edge missing in {settings.binaries}")
    assert "make bootstrap" in found.fix


@pytest.mark.parametrize("damage", ["gone", "not json", '{"other": 1}'])
async def test_an_image_that_is_not_built(settings: Settings, damage: str) -> None:
    record = settings.images / "base.json"
    if damage == "gone":
        record.unlink()
    else:
        record.write_text(damage)
    found = await look(settings, "base image")
    assert found.status is Status.FAILED
    assert "make bootstrap" in found.found


async def test_a_certificate_that_does_not_work(settings: Settings) -> None:
    given = settings.model_dump() | {"tls_cert": "/nowhere.pem", "tls_key": "/k.pem", "domain": "a.test"}
    found = await look(Settings(**given), "certificate")
    assert found.status is Status.FAILED
    assert "/nowhere.pem" in found.found
    assert "*.a.test" in found.fix


async def test_remains_of_the_dead_are_a_line_each_a_total_and_one_command(
    settings: Settings, host: dict[str, Any], tmp_path: Path
) -> None:
    host["remains"] = [
        Remains("dead00", None, False, ("fy-dead00-1",)),
        Remains("dead01", tmp_path, False, ("fy-dead01-1", "table forkyard_dead01")),
        Remains("alive0", Path("/"), True, ("fy-alive0-1",)),
    ]
    lines = [result for result in await doctor.examine(settings) if result.name == "dead instance"]
    assert [line.found for line in lines] == [
        "dead00: 1 thing left",
        f"dead01 (of {tmp_path}): 2 things left",
    ]
    assert not any(line.why or line.fix for line in lines)
    total = await look(settings, "remains")
    assert (total.status, total.found) == (Status.WARNING, "2 dead instances left something behind")
    assert "--clean" in total.fix


@pytest.mark.parametrize(
    ("given", "status", "words"),
    [
        ({"current": True, "machines": 2}, Status.OK, "needed by new sandboxes, 2 running machines"),
        ({"snapshots": 1}, Status.OK, "needed by 1 snapshot"),
        ({"machines": 1}, Status.OK, "needed by 1 running machine"),
        ({}, Status.HINT, "needed by nothing"),
    ],
)
async def test_what_keeps_a_version(
    settings: Settings, host: dict[str, Any], given: dict[str, Any], status: Status, words: str
) -> None:
    host["versions"] = [version(**given)]
    found = await look(settings, "envd version")
    assert (found.status, found.found) == (status, f"{'e' * 12}, 1.0 MiB: {words}")
    assert ("--clean" in found.fix) == (status is Status.HINT)


@pytest.mark.parametrize("error", [HostError("no database"), OSError("no disk"), ValueError("bad record")])
async def test_versions_that_cannot_be_told(
    settings: Settings, host: dict[str, Any], error: Exception
) -> None:
    host["versions"] = error
    found = await look(settings, "versions")
    assert found.status is Status.WARNING
    assert str(error) in found.found


async def test_clean_says_what_it_removed(settings: Settings, host: dict[str, Any]) -> None:
    host["remains"] = [
        Remains("dead00", None, False, ("fy-dead00-1",)),
        Remains("alive0", None, True, ("fy-alive0-1",)),
    ]
    host["removed"] = [version()]
    assert await doctor.clean_up(settings) == ["removed: instance dead00", f"removed: envd {'e' * 12}"]
    assert host["cleaned"] == ["dead00"]


async def test_clean_leaves_versions_to_a_server_that_runs(settings: Settings, host: dict[str, Any]) -> None:
    host["removed"] = DataDirectoryInUse()
    (line,) = await doctor.clean_up(settings)
    assert line.startswith("kept: versions, because a server runs")
    host["removed"] = ValueError("bad record")
    (line,) = await doctor.clean_up(settings)
    assert line.startswith("kept: versions")
    assert "bad record" in line
