"""Which of a machine's package sources the base image is built from."""

from pathlib import Path

import pytest

from forkyard.templates.base_image.recipe import Suite, detect_suite, recipe_hash
from forkyard.templates.base_image.sources import host_sources, without_credentials

BOOKWORM = Suite("bookworm", ("main",))


@pytest.fixture
def apt(tmp_path: Path) -> Path:
    (tmp_path / "sources.list.d").mkdir()
    return tmp_path


def test_one_line_sources(apt: Path) -> None:
    (apt / "sources.list").write_text(
        "# deb http://old.test/debian bookworm main\n"
        "deb http://mirror.test/debian bookworm main contrib # the mirror\n"
        "deb-src http://mirror.test/debian bookworm main\n"
        "deb [arch=amd64 signed-by=/k.gpg] http://security.test/debian bookworm-security main\n"
    )
    assert host_sources(BOOKWORM, apt) == (
        "Types: deb\nURIs: http://mirror.test/debian\nSuites: bookworm\nComponents: main\n"
        "\n"
        "Types: deb\nURIs: http://security.test/debian\nSuites: bookworm-security\nComponents: main\n"
        "Signed-By: /k.gpg\n"
    )


def test_deb822_sources_keep_their_key(apt: Path) -> None:
    (apt / "sources.list.d" / "debian.sources").write_text(
        "types: deb deb-src\n"
        "# a comment\n"
        "uris: http://mirror.test/debian\n"
        "suites: bookworm bookworm-updates bookworm-backports\n"
        "components: main non-free\n"
        "signed-by:\n"
        " -----BEGIN PGP PUBLIC KEY BLOCK-----\n"
        " .\n"
        " abc\n"
        "\n"
        "Types: deb-src\nURIs: http://sources.test/debian\nSuites: bookworm\nComponents: main\n"
    )
    assert host_sources(BOOKWORM, apt) == (
        "Types: deb\nURIs: http://mirror.test/debian\nSuites: bookworm bookworm-updates\nComponents: main\n"
        "Signed-By: \n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n abc\n"
    )


def test_other_publishers_and_disabled_sources_are_left_out(apt: Path) -> None:
    (apt / "sources.list.d" / "docker.list").write_text("deb http://docker.test/debian bookworm stable\n")
    (apt / "sources.list.d" / "node.sources").write_text(
        "Types: deb\nURIs: http://node.test\nSuites: nodistro\nComponents: main\n"
    )
    (apt / "sources.list.d" / "off.sources").write_text(
        "Enabled: no\nTypes: deb\nURIs: http://off.test\nSuites: bookworm\nComponents: main\n"
    )
    assert host_sources(BOOKWORM, apt) == ""


def test_credentials_do_not_reach_the_image() -> None:
    assert (
        without_credentials("URIs: https://me:secret@mirror.test/debian")
        == "URIs: https://mirror.test/debian"
    )
    assert without_credentials("URIs: https://mirror.test/a@b") == "URIs: https://mirror.test/a@b"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ID=debian\nVERSION_CODENAME=bookworm\n", Suite("bookworm", ("main",))),
        ('ID=ubuntu\nVERSION_CODENAME="noble"\n', Suite("noble", ("main", "universe"))),
    ],
)
def test_suite_of_the_machine(tmp_path: Path, text: str, expected: Suite) -> None:
    (tmp_path / "os-release").write_text(text)
    assert detect_suite(tmp_path / "os-release") == expected


def test_other_distributions_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "os-release").write_text('ID=fedora\nPRETTY_NAME="Fedora Linux 44"\nVERSION_CODENAME=""\n')
    with pytest.raises(ValueError, match="Fedora Linux 44"):
        detect_suite(tmp_path / "os-release")


def test_recipe_hash_tells_suites_apart() -> None:
    assert recipe_hash(BOOKWORM) == recipe_hash(Suite("bookworm", ("main",)))
    assert recipe_hash(BOOKWORM) != recipe_hash(Suite("trixie", ("main",)))
