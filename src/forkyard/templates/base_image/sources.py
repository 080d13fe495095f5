"""The package sources and download settings of this machine, reduced to what the image's own suite needs.

A machine reaches its packages through whatever its administrator set up (a mirror, a proxy, a private
authority); the image is built through the same door. Sources of other publishers are left out.
"""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from forkyard.templates.base_image.recipe import Suite

Stanza = dict[str, str]

_ONE_LINE = re.compile(
    r"^deb\s+(?:\[(?P<options>[^\]]*)\]\s+)?(?P<uri>\S+)\s+(?P<suite>\S+)\s+(?P<components>.+)$"
)
_KEPT_FIELDS = ("Signed-By", "Trusted", "Check-Valid-Until", "Check-Date")


def host_sources(suite: Suite, apt_dir: Path = Path("/etc/apt")) -> str:
    """This machine's sources of `suite`, updates and security fixes included, as deb822; empty if none."""
    wanted = {suite.name, f"{suite.name}-updates", f"{suite.name}-security"}
    stanzas: list[str] = []
    for stanza in _read_all(apt_dir):
        suites = [name for name in stanza.get("Suites", "").split() if name in wanted]
        components = [name for name in stanza.get("Components", "").split() if name in suite.components]
        if not suites or not components or "deb" not in stanza.get("Types", "deb").split():
            continue
        if stanza.get("Enabled", "yes").lower() in ("no", "false", "0"):
            continue
        lines = ["Types: deb", f"URIs: {stanza['URIs']}", f"Suites: {' '.join(suites)}"]
        lines.append(f"Components: {' '.join(components)}")
        lines += [f"{field}: {stanza[field]}" for field in _KEPT_FIELDS if field in stanza]
        stanzas.append("\n".join(lines) + "\n")
    return "\n".join(stanzas)


def host_acquire_options() -> str:
    """This machine's `Acquire` settings (proxies, certificates, time-outs) as an apt.conf text."""
    dump = subprocess.run(
        ["apt-config", "dump", "Acquire", "--format", '%F "%v";%n'],
        check=True,
        capture_output=True,
        text=True,
    )
    return "".join(line + "\n" for line in dump.stdout.splitlines() if not line.endswith('"";'))


def without_credentials(sources: str) -> str:
    """The same sources, with user and password taken out of every address."""
    return re.sub(r"(\w+://)[^/\s@]*@", r"\1", sources)


def _read_all(apt_dir: Path) -> Iterator[Stanza]:
    folder = apt_dir / "sources.list.d"
    for path in [apt_dir / "sources.list", *sorted(folder.glob("*.list"))]:
        if path.is_file():
            yield from _one_line_stanzas(path.read_text(errors="replace"))
    for path in sorted(folder.glob("*.sources")):
        yield from _deb822_stanzas(path.read_text(errors="replace"))


def _one_line_stanzas(text: str) -> Iterator[Stanza]:
    for line in text.splitlines():
        match = _ONE_LINE.match(line.partition("#")[0].strip())
        if match is None:
            continue
        stanza = {
            "URIs": match["uri"],
            "Suites": match["suite"],
            "Components": match["components"],
        }
        for option in (match["options"] or "").split():
            key, _, value = option.partition("=")
            stanza[_field_name(key)] = value
        yield stanza


def _deb822_stanzas(text: str) -> Iterator[Stanza]:
    stanza: Stanza = {}
    field = ""
    for line in [*text.splitlines(), ""]:
        if line.startswith("#"):
            continue
        if not line.strip():
            if stanza:
                yield stanza
            stanza, field = {}, ""
        elif line[0] in " \t":
            if field:
                stanza[field] += "\n" + line
        else:
            key, _, value = line.partition(":")
            field = _field_name(key)
            stanza[field] = value.strip()


def _field_name(written: str) -> str:
    """Names of fields may be written in any case."""
    name = "-".join(word.capitalize() for word in written.strip().split("-"))
    return "URIs" if name == "Uris" else name
