"""A private PostgreSQL server for tests: a cluster in a temporary folder, on a Unix socket only.

Comes from the distribution's `postgresql` package. PostgreSQL refuses to run as root, so a root caller runs it as the
package's own user. The server ends with the `with` block, and also when the process that started it is killed.
"""

import os
import pwd
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

_START_SECONDS = 60
_USER = "postgres"

# Parent of the server: reaps it when it dies, and stops it when its own input ends, that is when the caller closes it
# or is killed. The second process only waits for that.
_GUARD = """
exec 3<&0
"$@" </dev/null &
server=$!
{ read -r _ <&3; kill -INT $server; } 2>/dev/null &
reader=$!
exec 3<&-
wait $server
kill $reader 2>/dev/null
wait $reader
"""


class PostgresError(Exception):
    """PostgreSQL is not installed, or did not start; the text holds its log."""


class PostgresServer:
    """One running cluster. Methods block for as long as the server needs, at most a minute."""

    def __init__(self, folder: Path, binaries: Path) -> None:
        self.folder = folder
        """Holds the data (`data`), the socket and the log (`log`)."""
        self._binaries = binaries
        self._data = folder / "data"
        self._log = folder / "log"
        self._created = 0
        self._guard: subprocess.Popen[bytes] | None = None
        self._user: int | None = None
        self._group: int | None = None
        self._extra_groups: list[int] | None = None
        if os.geteuid() == 0:
            user = _unprivileged_user()
            os.chown(folder, user.pw_uid, user.pw_gid)
            self._user, self._group, self._extra_groups = user.pw_uid, user.pw_gid, []

    def url(self, database: str = "postgres") -> str:
        """Address of a database in the form of `DATABASE_URL`."""
        return f"postgresql://{_USER}@/{database}?host={quote(str(self.folder))}"

    def create_database(self, template: str = "template1") -> str:
        """Make a new database as a copy of `template` (which nobody may be connected to), and return its URL."""
        self._created += 1
        name = f"test_{os.getpid()}_{self._created}"
        self._run("createdb", *self._client_options(), f"--template={template}", name)
        return self.url(name)

    def drop_database(self, url: str) -> None:
        """Remove a database made by `create_database`, cutting its connections."""
        name = url.partition("@/")[2].partition("?")[0]
        self._run("dropdb", *self._client_options(), "--force", "--if-exists", name)

    def start(self) -> None:
        """Start the server, after `crash` or `stop` too; returns when it takes connections."""
        settings = {
            "listen_addresses": "",
            "unix_socket_directories": self.folder,
            # Losing everything with the machine is fine here; losing a commit to kill -9 would not be, and does not
            # happen without these: the operating system still has the pages.
            "fsync": "off",
            "full_page_writes": "off",
            "max_connections": 200,
            "shared_buffers": "32MB",
        }
        command = [str(self._binaries / "postgres"), "-D", str(self._data)]
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        with self._log.open("ab") as log:
            self._guard = subprocess.Popen(
                ["/bin/sh", "-c", _GUARD, "guard", *command],
                cwd=self.folder,
                env=_environment(),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                # Ctrl-C in the terminal must reach the tests only; the guard acts when they have ended.
                start_new_session=True,
                user=self._user,
                group=self._group,
                extra_groups=self._extra_groups,
            )
        deadline = time.monotonic() + _START_SECONDS
        while not self._ready():
            with suppress(subprocess.TimeoutExpired):
                self._guard.wait(timeout=0.02)
                raise PostgresError(f"the server ended while it started:\n{self._log_tail()}")
            if time.monotonic() > deadline:
                self.stop()
                raise PostgresError(f"the server is not ready after {_START_SECONDS} s:\n{self._log_tail()}")

    def stop(self) -> None:
        """Stop in order, closing connections; nothing happens when it does not run."""
        if self._guard is not None:
            self._guard.communicate(timeout=_START_SECONDS)
            self._guard = None

    def crash(self) -> None:
        """kill -9 of the server; returns when its sessions are gone too, so that `start` can follow at once."""
        pid = int((self._data / "postmaster.pid").read_text().split()[0])
        # Sessions notice the death of the server by a pipe and leave; the pidfd tells when each has.
        processes = [os.pidfd_open(process) for process in [pid, *_children(pid)]]
        try:
            signal.pidfd_send_signal(processes[0], signal.SIGKILL)
            for process in processes:
                _wait_for_exit(process)
        finally:
            for process in processes:
                os.close(process)
        self.stop()

    def _ready(self) -> bool:
        """What `pg_ctl --wait` looks at: the eighth line of the lock file."""
        try:
            lines = (self._data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        return len(lines) >= 8 and lines[7].strip() == "ready" and self._runs(int(lines[0]))

    def _runs(self, pid: int) -> bool:
        """Whether this is the server started last, not a lock file left by one that was killed."""
        assert self._guard is not None
        return pid in _children(self._guard.pid)

    def _log_tail(self) -> str:
        return self._log.read_text(errors="replace")[-4000:]

    def _client_options(self) -> tuple[str, ...]:
        return (f"--host={self.folder}", f"--username={_USER}")

    def _run(self, program: str, *arguments: str) -> None:
        result = subprocess.run(
            [str(self._binaries / program), *arguments],
            check=False,
            cwd=self.folder,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_START_SECONDS + 10,
            user=self._user,
            group=self._group,
            extra_groups=self._extra_groups,
        )
        if result.returncode:
            raise PostgresError(
                f"{program} ended with code {result.returncode}: {result.stdout.strip()[-2000:]}"
            )

    def initialise(self) -> None:
        """Make the cluster; once, before the first `start`."""
        self._run(
            *("initdb", f"--pgdata={self._data}", f"--username={_USER}", "--auth=trust"),
            *("--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions"),
        )


@contextmanager
def running_postgres() -> Generator[PostgresServer]:
    """A fresh server for the length of the block; `PostgresError` if there is none to be had."""
    binaries = _find_binaries()
    # /tmp, whatever TMPDIR says: the path of a Unix socket may have 107 bytes, and another user must reach it.
    folder = Path(tempfile.mkdtemp(prefix="forkyard-pg-", dir="/tmp"))
    try:
        server = PostgresServer(folder, binaries)
        server.initialise()
        try:
            server.start()
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _find_binaries() -> Path:
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if versions:
        return versions[-1].parent
    found = shutil.which("initdb")
    if found is None:
        raise PostgresError("PostgreSQL is not installed: apt-get install postgresql")
    return Path(found).resolve().parent


def _unprivileged_user() -> pwd.struct_passwd:
    for name in (_USER, "nobody"):
        with suppress(KeyError):
            return pwd.getpwnam(name)
    raise PostgresError("there is no unprivileged user to run PostgreSQL as")


def _environment() -> dict[str, str]:
    """Nothing of the caller's PG* settings."""
    return {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "HOME": "/"}


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _wait_for_exit(pidfd: int) -> None:
    ready, _, _ = select.select([pidfd], [], [], 10)
    if not ready:
        raise PostgresError("a process of the crashed server still runs after 10 s")
