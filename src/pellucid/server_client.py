"""Calls to a server that speaks OpenAI's protocol: its address, its key, its streams and its errors."""

import json
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from typing import Any

import httpx

SHOWN_CHARACTERS = 300  # of what a server says beside an error


class ServerError(ValueError):
    """A call that failed.

    Attributes:
        reason: in a few words, the same for each failure of the kind.
        status: of HTTP; None if there was no reply.
    """

    def __init__(self, reason: str, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.status = status


class ServerClient:
    """Calls to one server, on as many connections as there are calls at a time.

    Proxies of the environment are not used: their time would be measured, too.

    Args:
        url: of the server, with or without /v1 at its end.
        api_key: None if the server wants none.
        timeout: seconds without a byte of a reply, after which a call fails.

    Raises:
        ValueError: `url` or `api_key` cannot be one.
    """

    def __init__(self, url: str, api_key: str | None = None, timeout: float = 600.0) -> None:
        self.url = _checked_url(url)
        if api_key is not None and not (api_key.isascii() and api_key.isprintable()):
            raise ValueError("the API key: must consist of printable ASCII characters")
        self._http = httpx.AsyncClient(
            headers={"authorization": f"Bearer {api_key}"} if api_key else {},
            timeout=httpx.Timeout(timeout),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
            trust_env=False,
        )

    async def aclose(self) -> None:
        """Closes all connections; for `contextlib.aclosing`."""
        await self._http.aclose()

    async def get(self, path: str) -> Any:
        """The JSON that the server replies with.

        Raises:
            ServerError: the call failed.
        """
        with self._errors():
            reply = await self._http.get(self.url + path)
        return self._json_of(path, reply)

    async def post(self, path: str, body: Any) -> Any:
        """As `get`, with a body in JSON."""
        with self._errors():
            reply = await self._http.post(self.url + path, json=body)
        return self._json_of(path, reply)

    def _json_of(self, path: str, reply: httpx.Response) -> Any:
        self._check(path, reply)
        try:
            return reply.json()
        except ValueError:
            message = f"{self.url}{path}: the reply is not JSON: {_shown(reply.text)!r}"
            raise ServerError("not JSON", message) from None

    async def stream(
        self, method: str, path: str, body: Any = None
    ) -> AsyncGenerator[tuple[str, str], None]:
        """Server-sent events as they come, each with its name and its data.

        Raises:
            ServerError: the call failed, or the connection was lost.
        """
        with self._errors():
            async with self._http.stream(method, self.url + path, json=body) as reply:
                if reply.status_code != 200:
                    await reply.aread()
                    self._check(path, reply)
                name, data = "", []
                async for line in reply.aiter_lines():
                    if line.startswith("data:"):
                        data.append(line[5:].removeprefix(" "))
                    elif line.startswith("event:"):
                        name = line[6:].strip()
                    elif not line:
                        if data:
                            yield name, "\n".join(data)
                        name, data = "", []

    def _check(self, path: str, reply: httpx.Response) -> None:
        """Raises ServerError unless the reply is a success."""
        status = reply.status_code
        if status == 200:
            return
        said, code = _error_of(reply)
        where = f"{self.url}{path}: HTTP {status}"
        if status in (401, 403):
            where += ", a key is missing, wrong or not allowed this"
        reason = f"HTTP {status} {code}" if code else f"HTTP {status}"
        raise ServerError(reason, f"{where}: {said}" if said else where, status)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Turns the library's errors into ours."""
        try:
            yield
        except httpx.ConnectError as error:
            message = f"{self.url}: no server answers there: {error}"
            raise ServerError("no connection", message) from None
        except httpx.TimeoutException:
            message = f"{self.url}: the server has not answered in time"
            raise ServerError("timed out", message) from None
        except httpx.HTTPError as error:
            message = f"{self.url}: the connection was lost: {error or type(error).__name__}"
            raise ServerError("connection lost", message) from None


def _checked_url(url: str) -> str:
    """Without /v1 and / at its end."""
    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, TypeError) as error:
        raise ValueError(f"URL {url!r}: {error}") from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ValueError(f"URL {url!r}: must be as in http://127.0.0.1:8000")
    if parsed.query or parsed.fragment:
        raise ValueError(f"URL {url!r}: must have no ? and no #")
    return url.rstrip("/").removesuffix("/v1")


def _error_of(reply: httpx.Response) -> tuple[str, str]:
    """What a server says is wrong, and its name for that, in the forms that servers use."""
    try:
        body = json.loads(reply.content)
    except ValueError:
        return _shown(reply.text), ""
    error = body.get("error", body.get("detail", "")) if isinstance(body, dict) else body
    if not isinstance(error, dict):
        return _shown(str(error)), ""
    code = error.get("code")
    return _shown(str(error.get("message", error))), code if isinstance(code, str) else ""


def _shown(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= SHOWN_CHARACTERS else f"{line[:SHOWN_CHARACTERS]} ..."
