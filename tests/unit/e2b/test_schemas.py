import json
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import ValidationError

from forkyard.base.errors import InvalidInput, NotSupported
from forkyard.e2b.responses import answer
from forkyard.e2b.sandboxes import create_request, parse_states, parse_template_filter, to_utc
from forkyard.e2b.schemas.errors import Error
from forkyard.e2b.schemas.network import SandboxNetworkConfig, SandboxNetworkUpdateConfig
from forkyard.e2b.schemas.sandboxes import NewSandbox, NewSandboxV2, Sandbox, SandboxForkResult
from forkyard.sandboxes.creating import NewSandbox as CreateRequest
from forkyard.sandboxes.state import State


def asked(body: dict[str, Any], *, default_timeout: int = 300) -> CreateRequest:
    parsed = NewSandboxV2.model_validate({"templateID": "base", **body})
    return create_request(parsed, default_timeout=default_timeout, secure=True, idempotency_key=None)


def test_a_body_with_everything() -> None:
    request = asked(
        {
            "timeout": 77,
            "autoPause": True,
            "autoPauseMemory": True,
            "autoResume": {"enabled": True},
            "allow_internet_access": False,
            "network": {
                "allowOut": ["1.1.1.1"],
                "denyOut": ["0.0.0.0/0"],
                "allowPublicTraffic": False,
                "maskRequestHost": "example.com:${PORT}",
            },
            "metadata": {"a": "b"},
            "envVars": {"C": "d"},
            "mcp": {"server": {}},
            "somethingNew": {"x": 1},
        }
    )
    assert request == CreateRequest(
        template="base",
        timeout_s=77,
        pause_on_timeout=True,
        pause_keeps_memory=True,
        auto_resume=True,
        secure=True,
        public_traffic=False,
        allow_internet=False,
        allow_out=["1.1.1.1"],
        deny_out=["0.0.0.0/0"],
        mask_host="example.com:${PORT}",
        metadata={"a": "b"},
        env_vars={"C": "d"},
    )


@pytest.mark.parametrize("value", [None, "left out"])
def test_null_is_the_same_as_nothing(value: object) -> None:
    names = [name for name in NewSandboxV2.model_fields if name != "templateID"]
    body = dict.fromkeys(names, value) if value is None else {}
    assert asked(body) == CreateRequest(template="base", timeout_s=300)


def test_version_1_has_its_own_default_and_secures_on_request() -> None:
    body = NewSandbox.model_validate({"templateID": "base"})
    assert body.timeout is None
    assert body.secure is None
    assert asked({}, default_timeout=15).timeout_s == 15


@pytest.mark.parametrize(
    "body",
    [
        {"timeout": "300"},
        {"timeout": True},
        {"timeout": 1.5},
        {"timeout": -1},
        {"timeout": 2**31},
        {"autoPause": "yes"},
        {"metadata": {"a": 1}},
        {"metadata": ["a"]},
        {"envVars": {"A": None}},
        {"network": []},
        {"network": {"allowOut": "1.1.1.1"}},
        {"network": {"allowOut": [1]}},
        {"mcp": []},
        {"templateID": None},
        {"templateID": 5},
    ],
)
def test_wrong_types_are_refused_not_guessed(body: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        NewSandboxV2.model_validate({"templateID": "base", **body})


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"iam": {"tokens": {"aws": {"audience": "x", "tokenType": "JWT"}}}}, "iam"),
        ({"iam": {"other": 1}}, "iam"),
        ({"volumeMounts": [{"name": "v", "path": "/v"}]}, "volumeMounts"),
        ({"network": {"rules": {"example.com": []}}}, "network.rules"),
        ({"network": {"egressProxy": {"address": "proxy:1080"}}}, "network.egressProxy"),
        ({"network": {"dnsServers": ["8.8.8.8"]}}, "network.dnsServers"),
        ({"network": {"httpsPorts": [443]}}, "network.httpsPorts"),
        ({"network": {"whatComesNext": False}}, "network.whatComesNext"),
    ],
)
def test_security_fields_that_are_not_implemented_are_refused_by_name(
    body: dict[str, Any], field: str
) -> None:
    with pytest.raises(NotSupported) as caught:
        asked(body)
    assert caught.value.field == field
    assert field in caught.value.message


@pytest.mark.parametrize(
    "body",
    [
        {"iam": {}},
        {"iam": {"tokens": {}}},
        {"volumeMounts": []},
        {"network": {"rules": {}, "egressProxy": None, "dnsServers": [], "httpsPorts": []}},
    ],
)
def test_the_same_fields_empty_ask_for_nothing(body: dict[str, Any]) -> None:
    assert asked(body) == CreateRequest(template="base", timeout_s=300)


@pytest.mark.parametrize(
    "mask",
    [
        "localhost",
        "example.com",
        "my-app.example.com:${PORT}",
        "${PORT}-x.example.com",
        "127.0.0.1:8080",
        "[::1]:${PORT}",
    ],
)
def test_host_masks(mask: str) -> None:
    assert SandboxNetworkConfig(maskRequestHost=mask).checked_mask() == mask


@pytest.mark.parametrize(
    "mask",
    [
        "a b",
        "a\r\nX-Evil: 1",
        "http://example.com",
        "a/b",
        "-a.com",
        "a:b",
        "a:123456",
        "${HOST}",
        "x" * 256,
        "ü.com",
    ],
)
def test_host_masks_that_could_not_stand_in_a_header(mask: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        SandboxNetworkConfig(maskRequestHost=mask).checked_mask()
    assert caught.value.field == "network.maskRequestHost"


def test_an_update_names_the_field_without_a_prefix() -> None:
    with pytest.raises(NotSupported) as caught:
        SandboxNetworkUpdateConfig.model_validate({"rules": {"a.com": [{}]}}).refuse_unsupported("")
    assert caught.value.field == "rules"


def test_answers_leave_out_what_e2b_leaves_out_and_keep_the_nulls_it_has() -> None:
    body = Sandbox(templateID="t", sandboxID="i", clientID="c", envdVersion="0.6.13")
    assert json.loads(bytes(answer(body).body)) == {
        "templateID": "t",
        "sandboxID": "i",
        "clientID": "c",
        "envdVersion": "0.6.13",
        "trafficAccessToken": None,
        "domain": None,
    }


def test_a_fork_result_has_one_of_the_two() -> None:
    failed = SandboxForkResult(error=Error(code=500, message="x"))
    assert json.loads(bytes(answer([failed], status=201).body)) == [{"error": {"code": 500, "message": "x"}}]


@pytest.mark.parametrize(
    ("values", "states"),
    [
        ([], {State.RUNNING, State.PAUSED}),
        (["running"], {State.RUNNING}),
        (["running,paused"], {State.RUNNING, State.PAUSED}),
        (["paused", "running"], {State.RUNNING, State.PAUSED}),
        (["paused, "], {State.PAUSED}),
    ],
)
def test_states(values: list[str], states: set[State]) -> None:
    assert parse_states(values) == states


@pytest.mark.parametrize("values", [["gone"], ["running,creating"], ["RUNNING"]])
def test_other_states_are_refused(values: list[str]) -> None:
    with pytest.raises(InvalidInput):
        parse_states(values)


def test_template_filter() -> None:
    assert parse_template_filter("") is None
    assert parse_template_filter(" Team/My-Base ") == "my-base"
    for text in ("base:v1", "a b", "a/b/c", "'"):
        with pytest.raises(InvalidInput):
            parse_template_filter(text)


def test_a_start_out_of_range_is_refused() -> None:
    first = datetime.fromisoformat("0001-01-01T00:00:00+14:00")
    with pytest.raises(InvalidInput):
        to_utc(first)
    assert to_utc(datetime(2026, 1, 1, tzinfo=UTC)) == datetime(2026, 1, 1, tzinfo=UTC)
    assert to_utc(None) is None
