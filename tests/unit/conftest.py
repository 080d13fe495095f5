"""Unit tests stay inside the process: a test that opens a network connection belongs into another folder."""

import socket
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    connect = socket.socket.connect

    def refuse(self: socket.socket, address: Any) -> None:
        if self.family in (socket.AF_INET, socket.AF_INET6):
            raise AssertionError(
                f"a unit test connects to {address}: use a fake, or move it to tests/integration"
            )
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", refuse)
