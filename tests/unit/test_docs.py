"""The documents say what is there: folders, rules, targets and links."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from forkyard.node.settings import Settings
from scripts import settings_table

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "forkyard"
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
NOT_YET = {"agents", "jobs"}

DOCUMENTS = [
    path
    for path in [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("tests/*.md"),
        *ROOT.glob("benchmarks/*.md"),
    ]
    if path.name != "LICENSE"
]


def described_folders() -> list[str]:
    """Paths in the tree of architecture.md."""
    block = ARCHITECTURE.split("## Tree\n\n```\n")[1].split("\n```")[0]
    folders: list[str] = []
    parent = ""
    for line in block.splitlines():
        name = line.split()[0]
        if line.startswith(" "):
            folders.append(parent + name)
        else:
            parent = name
            folders.append(name)
    return folders


def packages() -> set[str]:
    return {path.parent.name for path in PACKAGE.glob("*/__init__.py")}


def tracked_top_folders() -> set[str]:
    listing = subprocess.run(
        ["git", "ls-files", "--", "*/*"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout
    return {path.split("/")[0] for path in listing.splitlines() if not path.startswith(".")}


def test_every_folder_in_the_tree_exists() -> None:
    missing = [folder for folder in described_folders() if not (ROOT / folder).is_dir()]
    assert missing == []


def test_every_package_is_in_the_tree() -> None:
    described = {
        Path(folder).name for folder in described_folders() if folder.startswith("src/forkyard/")
    } - {"forkyard"}
    assert packages() == described


def test_every_top_folder_is_in_the_tree() -> None:
    described = {folder.split("/")[0] for folder in described_folders()}
    assert tracked_top_folders() - described == set()


def test_the_rule_of_imports_is_the_one_that_is_checked() -> None:
    (layers,) = [contract["layers"] for contract in CONTRACTS if contract["type"] == "layers"]
    checked = " > ".join(row.replace("(", "").replace(")", "") for row in layers)
    assert f"`{checked}`" in ARCHITECTURE


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda contract: contract["name"])
def test_import_contracts_name_every_package(contract: dict[str, object]) -> None:
    """A new package must be put into each contract, or be one that the contract lets through."""
    let_through = {
        "Imports point only down; folders in one row do not know each other": {"testing"},
        "Drivers see of sandboxes only driver.py, and never the store": None,
        "Commands talk HTTP through client; only serve reaches into node": {
            "cli",
            "node",
            "client",
            "base",
            "testing",
        },
        "Only routes.py files, e2b and node know the web framework": {"cli", "e2b", "node", "testing"},
        "testing is for tests": {"testing"},
    }
    allowed = let_through[str(contract["name"])]
    if allowed is None:
        return
    named = set(
        re.findall(r"\b[a-z0-9]+\b", str({key: contract.get(key) for key in _LISTS if key in contract}))
    )
    assert packages() - named - allowed == set()


_LISTS = ("layers", "source_modules", "forbidden_modules")


def test_decisions_are_numbered_and_short() -> None:
    files = sorted(path for path in (ROOT / "docs" / "adr").glob("[0-9]*.md"))
    numbers = [int(path.name[:4]) for path in files]
    assert len(set(numbers)) == len(numbers), "two decisions have the same number"
    for path in files:
        text = path.read_text()
        assert text.startswith(f"# {int(path.name[:4])}. "), path.name
        assert len(text) < 9000, f"{path.name} is longer than two pages"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_and_commands_exist(document: Path) -> None:
    text = document.read_text()
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
        if "://" not in target:
            assert (document.parent / target).exists(), f"{document.name} links to {target}"
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for command in re.findall(r"(?:^|`)make ([a-z]+)\b", text, re.MULTILINE):
        assert command in targets, f"{document.name} names `make {command}`"


def test_every_target_explains_itself() -> None:
    makefile = (ROOT / "Makefile").read_text()
    (phony,) = re.findall(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    explained = re.findall(r"^([a-z-]+):.* ## \S", makefile, re.MULTILINE)
    assert set(phony.split()) == set(explained)


def test_the_settings_guide_is_what_the_declarations_say() -> None:
    text = settings_table.FILE.read_text()
    assert text == settings_table.render(text), "run scripts/settings_table.py"
    for name, field in Settings.model_fields.items():
        assert field.description, f"{name} does not say what it is"
        assert f"`FORKYARD_{name.upper()}`" in text


def test_the_table_of_settings_takes_nothing_else_with_it() -> None:
    head = settings_table.HEAD
    rendered = settings_table.render(f"before\n\n{head}| old | row | here |\n\nafter\n")
    assert rendered.startswith(f"before\n\n{head}")
    assert rendered.endswith(" |\n\nafter\n")
    assert "old" not in rendered


def metrics_in_code() -> set[str]:
    """Names of the metrics of control plane and edge; the edge puts some of them together."""
    python = "".join(path.read_text() for path in PACKAGE.glob("**/*.py"))
    edge = "".join(
        path.read_text() for path in ROOT.glob("go/internal/edge/**/*.go") if "_test" not in path.name
    )
    joined = re.findall(r'\{"([a-z_]+)", "(?:gauge|counter)"', edge)
    found = re.findall(r'"(forkyard_[a-z_]+[a-z])"', python + edge)
    return set(found) | {f"forkyard_edge_{name}" for name in joined}


def test_the_operators_guide_names_every_metric_and_no_other() -> None:
    guide = (ROOT / "docs" / "guide" / "operations.md").read_text()
    assert set(re.findall(r"`(forkyard_[a-z_]+)", guide)) == metrics_in_code()
