"""These tests run on asyncio's own event loop and on uvloop, which the server uses: they own pipes differently."""

import asyncio

import pytest
import uvloop


@pytest.fixture(params=["asyncio", "uvloop"])
def event_loop_policy(request: pytest.FixtureRequest) -> asyncio.AbstractEventLoopPolicy:
    return uvloop.EventLoopPolicy() if request.param == "uvloop" else asyncio.DefaultEventLoopPolicy()
