"""Edge and keeper that hang instead of dying: nothing else would ever end them."""

from __future__ import annotations

import os
import signal

from tests.e2e.server import ServerProcess
from tests.e2e.waiting import until
from tests.faults.inspection import check_agreement, command_line, pid_of_program
from tests.faults.witness import Witness


def stop(server: ServerProcess) -> list[int]:
    """SIGSTOP both; their pids."""
    pids = [pid_of_program(server.data_dir, program) for program in ("edge", "keeper")]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    return pids


def ended(pids: list[int]) -> bool | None:
    return all(command_line(pid) == "" for pid in pids) or None


def test_those_that_hang_are_replaced_and_sandboxes_live(server: ServerProcess) -> None:
    witness = Witness.create(server)
    pids = stop(server)
    until(lambda: ended(pids), "both are ended", timeout_s=90)
    until(lambda: server.answers("/ready") or None, "all is there again", timeout_s=30)
    witness.check()
    witness.pause()
    witness.check()
    witness.kill()
    check_agreement(server.data_dir)


def test_those_that_hang_when_the_server_starts_do_not_keep_it_from_that(server: ServerProcess) -> None:
    witness = Witness.create(server)
    server.kill()
    pids = stop(server)
    server.start(timeout_s=120)
    assert ended(pids)
    witness.check()
    witness.kill()
    check_agreement(server.data_dir)
