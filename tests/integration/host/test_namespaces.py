"""Network namespaces and the directory of their names."""

import ctypes
import os

import pytest

from forkyard.host import namespaces

BIND = 4096


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_the_directory_is_released_though_two_have_mounted_it() -> None:
    if namespaces.DIRECTORY.exists() and os.listdir(namespaces.DIRECTORY):
        pytest.skip("somebody uses it")
    namespaces.prepare_directory()
    path = bytes(namespaces.DIRECTORY)
    assert ctypes.CDLL(None).mount(path, path, None, BIND, None) == 0  # as one that looked at the same time
    namespaces.release_directory()
    assert not namespaces.DIRECTORY.exists()
