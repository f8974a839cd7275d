"""Access to the server, and the limits of what a connection may send before anything is computed."""

import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pellucid.server.api_keys import ApiKeys, Caller, Role
from pellucid.server.config import Limits, ServerConfig
from support.api_keys import ADMIN_KEY, KEYS, OTHER_KEY, USER_KEY
from support.fake_model import fake_engine
from support.http_server import TIMEOUT, RunningServer, running_server
from support.refusals import check_refusals

SMALL = Limits(max_header_bytes=2048, max_body_bytes=4096)


@pytest.fixture(scope="module")
def guarded() -> Iterator[RunningServer]:
    """A server with keys and tight limits."""
    knobs = {"api_keys": KEYS, "limits": SMALL, "allowed_origins": ("https://chat.example",)}
    with running_server(fake_engine(), **knobs) as running:
        yield running


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/ready"),
        ("GET", "/v1/models"),
        ("POST", "/v1/completions"),
        ("GET", "/no/such/route"),
        ("GET", "/health/"),
        ("GET", "//health"),
        ("GET", "/%68ealth/../v1/models"),
        ("OPTIONS", "/v1/models"),
    ],
)
def test_every_path_but_health_needs_a_key(guarded: RunningServer, method: str, path: str) -> None:
    for headers in ({}, bearer("wrong"), bearer(""), {"x-api-key": USER_KEY[:-1]}):
        reply = guarded.call(method, path, b"{}" if method == "POST" else None, headers)
        assert reply.status == 401
        assert reply.json["error"]["code"] == "invalid_api_key"
        assert reply.headers["www-authenticate"] == "Bearer"
    assert guarded.get("/health").json == {"status": "ok"}


def test_a_key_comes_in_either_header(guarded: RunningServer) -> None:
    assert guarded.get("/v1/models", authorization=f"Bearer {USER_KEY}").status == 200
    assert guarded.get("/v1/models", authorization=f"bearer  {USER_KEY}").status == 200
    assert guarded.get("/v1/models", x_api_key=ADMIN_KEY).status == 200


def test_dns_rebinding_another_name_for_this_machine_is_refused(guarded: RunningServer) -> None:
    for host in ("evil.example", "evil.example:8000", "localhost.evil.example", ""):
        reply = guarded.call("GET", "/v1/models", headers={"host": host, "x-api-key": USER_KEY})
        assert (reply.status, reply.json["error"]["code"]) == (403, "host_not_allowed")
    for host in ("localhost", "LOCALHOST:80", "127.0.0.1:8000", "[::1]", "[::1]:8000"):
        reply = guarded.call("GET", "/v1/models", headers={"host": host, "x-api-key": USER_KEY})
        assert reply.status == 200


@pytest.mark.parametrize(
    ("knobs", "status_of_host"),
    [
        ({}, {"10.0.0.5:8000": 200, "[fd00::5]": 200, "gpu.example": 403}),
        (
            {"host": "0.0.0.0", "api_keys": KEYS, "allowed_hosts": ("gpu.example",)},
            {"10.0.0.5:8000": 200, "GPU.example": 200, "other.example": 403},
        ),
        ({"host": "0.0.0.0", "api_keys": KEYS}, {"10.0.0.5": 200, "any.example:80": 200}),
        (
            {"host": "0.0.0.0", "allow_anyone": True},
            {"10.0.0.5": 200, socket.gethostname(): 200, "any.example": 403, "10.0.0.5.evil": 403},
        ),
    ],
)
def test_which_hosts_are_answered(knobs: dict[str, Any], status_of_host: dict[str, int]) -> None:
    """Probes of Kubernetes call by address. Keys protect from DNS rebinding; without them names must be known."""
    with running_server(fake_engine(), **knobs) as server:
        local = replace(server, host="127.0.0.1")
        found = {
            host: local.call("GET", "/health", headers={"host": host}).status
            for host in status_of_host
        }
    assert found == status_of_host


def test_pages_of_other_hosts_may_not_call_unless_they_are_allowed(guarded: RunningServer) -> None:
    for origin in ("https://evil.example", "null", "http://localhost.evil.example"):
        reply = guarded.get("/v1/models", origin=origin, x_api_key=USER_KEY)
        assert (reply.status, reply.json["error"]["code"]) == (403, "origin_not_allowed")
        assert "access-control-allow-origin" not in reply.headers
    own = f"http://{guarded.host}:{guarded.port}"
    assert guarded.get("/v1/models", origin=own, x_api_key=USER_KEY).status == 200
    allowed = guarded.get("/v1/models", origin="https://chat.example", x_api_key=USER_KEY)
    assert allowed.headers["access-control-allow-origin"] == "https://chat.example"
    exposed = allowed.headers["access-control-expose-headers"].split(", ")
    assert exposed == ["x-request-id", "x-pellucid-warnings", "retry-after"]
    preflight = guarded.call(
        "OPTIONS",
        "/v1/completions",
        headers={
            "origin": "https://chat.example",
            "access-control-request-method": "POST",
            "access-control-request-headers": "authorization",
        },
    )
    assert preflight.status == 200
    assert "authorization" in preflight.headers["access-control-allow-headers"]
    assert preflight.headers["access-control-allow-methods"] == "GET, HEAD, POST"


def test_a_body_has_a_limit_announced_or_not(guarded: RunningServer) -> None:
    body = b'{"prompt": "' + b"a" * 5000 + b'"}'
    reply = guarded.call("POST", "/v1/completions", body, bearer(USER_KEY))
    assert reply.status == 413
    assert "4096 bytes" in reply.json["error"]["message"]
    with socket.create_connection((guarded.host, guarded.port), TIMEOUT) as connection:
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nx-api-key: %b\r\n"
            b"transfer-encoding: chunked\r\n\r\n1400\r\n%b\r\n" % (USER_KEY.encode(), b"a" * 5120)
        )
        assert connection.recv(100).startswith(b"HTTP/1.1 413")


def test_cve_2025_48956_headers_have_a_limit(guarded: RunningServer) -> None:
    reply = guarded.get("/v1/models", x_api_key=USER_KEY, x_long="a" * 2048)
    assert reply.status == 431


def test_a_slow_body_is_ended() -> None:
    with (
        running_server(fake_engine(), limits=Limits(body_seconds=0.3)) as server,
        socket.create_connection((server.host, server.port), TIMEOUT) as connection,
    ):
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 10\r\n\r\n{"
        )
        assert connection.recv(100).startswith(b"HTTP/1.1 408")


def test_a_connection_is_kept_while_it_is_idle_between_calls() -> None:
    seconds = 0.3  # from the connection to the end of the first head

    def is_served(connection: socket.socket) -> bool:
        reply = b""
        with suppress(ConnectionError):
            connection.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
            while not reply.endswith(b"}") and (piece := connection.recv(1000)):
                reply += piece
        return reply.startswith(b"HTTP/1.1 200")

    with running_server(fake_engine(), limits=Limits(header_seconds=seconds)) as server:
        for _ in range(100):  # on a machine that stalls, the first head may be late
            with socket.create_connection((server.host, server.port), TIMEOUT) as connection:
                if is_served(connection):
                    time.sleep(seconds * 1.5)
                    assert is_served(connection)
                    return
        pytest.fail("no head arrived in time")


def test_no_secret_is_shown(guarded: RunningServer, caplog: pytest.LogCaptureFixture) -> None:
    reply = guarded.call("POST", "/v1/completions", b"{", bearer(USER_KEY))
    assert reply.status == 400
    assert USER_KEY not in caplog.text + repr(KEYS) + repr(vars(KEYS)) + reply.body.decode()


def test_keys_are_read_from_a_file_and_the_environment(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"# who\ninference user {USER_KEY}\n\nadmin ops {ADMIN_KEY}  # that is me\n")
    environment = {"PELLUCID_API_KEY": OTHER_KEY}
    keys = ApiKeys.read(path, environment)
    assert keys.find(USER_KEY) == Caller("user", Role.INFERENCE)
    assert keys.find(ADMIN_KEY) == Caller("ops", Role.ADMIN)
    assert keys.find(OTHER_KEY) == Caller("inference", Role.INFERENCE)
    assert keys.find("") is None and keys.find("\ud800") is None
    assert not ApiKeys.read(None, {}) and ApiKeys.read(None, environment)
    for weight in (0.001, 1000):
        path.write_text(f"admin ops sixteen--------- weight={weight}")
        assert ApiKeys.read(path, {}).find("sixteen---------") == Caller("ops", Role.ADMIN, weight)
    given = ApiKeys.read(None, {}, [USER_KEY, OTHER_KEY])
    assert given.find(USER_KEY) == given.find(OTHER_KEY) == Caller("inference", Role.INFERENCE)


KEY = "sk-0123456789abcdef"
WRONG_KEYS = (
    f"user {KEY}",
    f"admin ops {KEY} weight=0",
    f"admin ops {KEY} weight=1001",
    f"admin ops {KEY} 2",
    f"admin a {KEY}\nadmin a sk-1123456789abcdef weight=2",
    f"\nroot user {KEY}",
    "admin ops fifteen--------",
    "admin ops sk-0123456789abcdéf",
    f"admin a {KEY}\nadmin b {KEY}",
)


def test_a_file_of_keys_with_a_mistake_is_refused_and_not_shown(tmp_path: Path) -> None:
    file = tmp_path / "keys"

    def read(text: str) -> None:
        file.write_text(text)
        ApiKeys.read(file, {})

    check_refusals("api_keys", WRONG_KEYS, read, hidden=tmp_path)


WRONG_SERVERS: tuple[dict[str, Any], ...] = (
    {"host": "0.0.0.0"},
    {"host": "example.com"},
    {"port": 65536},
    {"port": -1},
    {"stall_seconds": 0},
    {"otlp_endpoint": "127.0.0.1:4318"},
    {"allowed_origins": ("https://chat.example/",)},
    {"allowed_origins": ("chat.example",)},
    {"model_names": ("a", "")},
    {"keepalive_seconds": 0},
    {"isolate_keys": True},
    {"limits": {"max_completions": 0}},
)


def test_a_server_that_cannot_be_is_refused() -> None:
    def make(knobs: dict[str, Any]) -> None:
        limits = Limits(**knobs.get("limits", {}))
        ServerConfig(**{"model_names": ("m",), **knobs, "limits": limits})

    check_refusals("server_config", WRONG_SERVERS, make)
    for knobs in (
        *({"port": port} for port in (0, 65535)),
        *({"host": host} for host in ("localhost", "127.0.0.1", "127.0.0.2", "::1")),
        *({"host": "0.0.0.0", **who} for who in ({"api_keys": KEYS}, {"allow_anyone": True})),
    ):
        config = ServerConfig(model_names=("m",), **knobs)
        assert config.port == knobs.get("port", 8000)
        assert config.is_loopback is (config.host != "0.0.0.0")
