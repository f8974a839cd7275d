"""Checks Host, Origin and API key of every call, before any route is looked up.

Pure ASGI: a middleware between a stream and its client would hide that the client went away.
"""

import secrets
import socket
from ipaddress import ip_address

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from pellucid.server.api_keys import ANYONE, Caller
from pellucid.server.config import ServerConfig
from pellucid.server.errors import ApiError, ErrorShape

OPEN_PATHS = frozenset({"/", "/docs", "/health", "/page"})  # the rest needs a key, if there are any
OPEN_FOLDER = "/page/"  # files of the page
LOCAL_HOSTS = frozenset({"localhost"})


class Access:
    """Gives each call an id and a caller, in `scope["pellucid"]`, or refuses it.

    The Host must be an IP address, one of this machine's names, or an allowed one: a web page whose host name
    resolves to this machine (DNS rebinding) is refused. A page cannot rebind an address, and probes call by
    address. Where keys protect a server that other machines reach, and no name is allowed by itself, any name is.
    The Origin header names the page that makes a browser's call: pages of other hosts must be allowed.

    Args:
        app: the application that gets the calls that are let through.
        config: the server's.
    """

    def __init__(self, app: ASGIApp, config: ServerConfig) -> None:
        self._app = app
        self._config = config
        own_name = socket.gethostname().lower()
        self._hosts = LOCAL_HOSTS | {
            config.host.lower(),
            own_name,
            f"{own_name}.local",
            *map(str.lower, config.allowed_hosts),
        }
        has_keys = bool(config.api_keys)
        self._any_host = has_keys and not config.is_loopback and not config.allowed_hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = secrets.token_hex(12)
        try:
            scope["pellucid"] = (request_id, self._caller(scope))
        except ApiError as error:
            reply = refusal(error, scope["path"], request_id)
            await reply(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _caller(self, scope: Scope) -> Caller:
        headers = {
            name: value.decode("latin-1")
            for name, value in scope["headers"]
            if name in (b"host", b"origin", b"authorization", b"x-api-key")
        }
        limit = self._config.limits.max_header_bytes
        if sum(len(name) + len(value) for name, value in scope["headers"]) > limit:
            raise ApiError(431, f"headers: at most {limit} bytes are allowed")
        host = headers.get(b"host", "")
        name = (host if host.endswith("]") else host.rpartition(":")[0] or host).lower()
        if not self._any_host and name not in self._hosts and not _is_address(name):
            raise ApiError(
                403,
                "Host: this name is not one that the server answers to; start it with --allowed-host",
                code="host_not_allowed",
            )
        origin = headers.get(b"origin")
        if origin is not None and origin not in self._config.allowed_origins:
            if origin.partition("://")[2] != host:
                raise ApiError(
                    403,
                    "Origin: web pages of other hosts may not call; start the server with"
                    " --allowed-origin",
                    code="origin_not_allowed",
                )
        path = scope["path"]
        is_open = path in OPEN_PATHS or path.startswith(OPEN_FOLDER)
        if not self._config.api_keys or is_open:
            return ANYONE
        scheme, _, token = headers.get(b"authorization", "").partition(" ")
        key = token.strip() if scheme.lower() == "bearer" else headers.get(b"x-api-key", "")
        caller = self._config.api_keys.find(key)
        if caller is None:
            raise ApiError(
                401,
                "a valid API key is needed: as 'Authorization: Bearer KEY' or 'x-api-key: KEY'",
                code="invalid_api_key",
                headers={"www-authenticate": "Bearer"},
            )
        return caller


def refusal(error: ApiError, path: str, request_id: str) -> Response:
    """The reply to a call that reaches no handler."""
    body = ErrorShape.of_path(path).body(error, request_id)
    headers = {"x-request-id": request_id, **error.headers}
    return Response(body, error.status, headers, "application/json")


def _is_address(name: str) -> bool:
    """Whether a Host is an IP address; one of IPv6 stands in brackets."""
    try:
        ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True
