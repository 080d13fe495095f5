"""Which status and body each error gets."""

import importlib
import json
import pkgutil

import pytest

import forkyard
from forkyard.auth.errors import InvalidApiKey, LastAdminKey, RoleNotAllowed
from forkyard.base import errors as base
from forkyard.e2b.errors import RULES, default_message, describe, error_response, retry_headers, rule_of
from forkyard.guest.errors import GuestUnreachable
from forkyard.host import errors as host
from forkyard.sandboxes import errors as sandboxes
from forkyard.sandboxes.driver import HostFull, MachineLost, SnapshotUnusable
from forkyard.storage import errors as storage

for _module in pkgutil.walk_packages(forkyard.__path__, "forkyard."):
    if _module.name.rpartition(".")[2] in ("errors", "driver"):
        importlib.import_module(_module.name)


def _all(cls: type[base.ForkyardError]) -> set[type[base.ForkyardError]]:
    return {cls}.union(*(_all(child) for child in cls.__subclasses__()))


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (base.ForkyardError(), 500),
        (base.InvalidInput("x", "field"), 400),
        (base.NotSupported("x", "field"), 400),
        (base.TooLarge(), 413),
        (base.NotFound(), 404),
        (base.Conflict(), 409),
        (base.LimitExceeded(), 429),
        (base.StorageFull(), 507),
        (base.Unavailable(), 503),
        (base.DeadlineExceeded(), 504),
        (InvalidApiKey(), 401),
        (RoleNotAllowed(), 403),
        (LastAdminKey(), 409),
        (sandboxes.SandboxNotFound("i1"), 404),
        (sandboxes.TemplateNotFound("x"), 404),
        (sandboxes.SnapshotNotFound("x"), 404),
        (sandboxes.AlreadyPaused(), 409),
        (sandboxes.AlreadyRunning(), 409),
        (sandboxes.NotRunning(), 409),
        (sandboxes.IdempotencyMismatch(), 422),
        (sandboxes.SandboxLimit(), 429),
        (sandboxes.DiskFull(), 507),
        (sandboxes.SnapshotDamaged(), 409),
        (sandboxes.TransitionFailed("no keeper at /run/x"), 500),
        (SnapshotUnusable(), 409),
        (HostFull(), 507),
        (MachineLost(), 500),
        (storage.DatabaseUnavailable(), 503),
        (storage.DatabaseBusy(), 503),
        (storage.DatabaseFull(), 507),
        (storage.InvalidValue(), 400),
    ],
)
def test_status(error: base.ForkyardError, status: int) -> None:
    assert rule_of(error).status == status
    body = describe(error, None)
    assert (body.code, body.error_code) == (status, error.code)
    assert body.message


@pytest.mark.parametrize(
    "error",
    [sandboxes.WrongState("still pausing"), storage.DatabaseConflict(), sandboxes.GuestUnresponsive()],
)
def test_what_passes_is_not_409_which_the_sdks_take_for_paused_already(error: base.ForkyardError) -> None:
    assert rule_of(error).status == 503


@pytest.mark.parametrize(
    "error",
    [host.ProcessGone(), host.SlotNotFound(), host.DataDirectoryInUse(), GuestUnreachable()],
    ids=lambda error: type(error).__name__,
)
def test_not_found_of_lower_layers_is_not_the_clients_business(error: base.ForkyardError) -> None:
    assert rule_of(error).status == 500


def test_every_error_class_has_an_answer_and_a_message() -> None:
    for cls in _all(base.ForkyardError):
        if not cls.__module__.startswith("forkyard."):
            continue
        error = cls.__new__(cls)
        assert 400 <= rule_of(error).status < 600, cls
        assert default_message(error), f"{cls} has no docstring: that is what users are shown"


def test_the_table_names_only_statuses_that_the_sdks_know() -> None:
    assert {rule.status for rule in RULES.values()} <= {
        400, 401, 403, 404, 409, 413, 422, 429, 500, 503, 504, 507,
    }  # fmt: skip


@pytest.mark.parametrize(
    "error",
    [
        base.ForkyardError("runsc said: open /var/lib/forkyard/secret"),
        storage.DatabaseUnavailable("cannot connect to db.internal"),
        MachineLost("signal 9 in /proc/77"),
    ],
)
def test_details_of_our_own_failures_stay_inside(error: base.ForkyardError) -> None:
    body = describe(error, "req-1")
    assert body.message.startswith(default_message(error))
    for detail in ("/var", "db.internal", "/proc"):
        assert detail not in body.message


def test_how_things_stand_after_a_failed_transition_is_told_without_the_cause() -> None:
    error = sandboxes.TransitionFailed("the sandbox died during its pause: signal 9 in /proc/77")
    assert describe(error, "r").message == "the sandbox died during its pause (request r)"


def test_a_500_names_the_request() -> None:
    assert describe(base.ForkyardError("secret"), "req-1").message.endswith("(request req-1)")


def test_clients_are_told_what_they_did_wrong() -> None:
    assert describe(base.InvalidInput("count must be 1", "count"), "req-1").message == "count must be 1"


def test_messages_are_cut() -> None:
    assert len(describe(base.InvalidInput("x" * 5000), None).message) == 1000


@pytest.mark.parametrize(
    ("status", "retry_after", "headers"),
    [
        (429, None, {"Should-Retry": "false"}),
        (429, 0.2, {"Retry-After": "1"}),
        (429, 2.5, {"Retry-After": "3"}),
        (429, 5, {"Retry-After": "5", "Should-Retry": "false"}),
        (503, None, {"Should-Retry": "false"}),
        (503, 1, {"Retry-After": "1"}),
        (504, None, {"Should-Retry": "false"}),
        (409, None, {}),
        (500, None, {}),
    ],
)
def test_retry_headers(status: int, retry_after: float | None, headers: dict[str, str]) -> None:
    assert retry_headers(status, retry_after) == headers


def test_a_body_without_an_error_code_leaves_it_out() -> None:
    response = error_response(404, "Not Found")
    assert json.loads(bytes(response.body)) == {"code": 404, "message": "Not Found"}
    assert response.headers["content-type"] == "application/json"
