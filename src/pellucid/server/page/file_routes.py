"""/page: the live page and its files. They hold no secrets and need no key; the routes that the page calls do."""

from pellucid.observing.page_files import page_files, security_policy
from pellucid.server.endpoint import Call, Handler, Reply, StreamedReply
from pellucid.server.errors import ApiError


class PageRoutes:
    """The handlers of the routes."""

    def __init__(self) -> None:
        self._files = page_files()
        self._index = self._files.index(f"/page/{self._files.version}/")
        self._headers = {
            "content-security-policy": security_policy(self._index),
            "cache-control": "no-cache",
            "etag": f'"{self._files.version}"',
            "referrer-policy": "no-referrer",
        }

    async def index(self, call: Call) -> Reply:
        """The live page."""
        if call.headers.get("if-none-match") == self._headers["etag"]:
            return Reply(b"", 304, headers=self._headers)
        return Reply(self._index.encode(), 200, "text/html; charset=utf-8", self._headers)

    def index_for_browsers(self, other: Handler) -> Handler:
        """A handler that sends the page to clients that accept HTML, and the reply of `other` to all others."""

        async def root(call: Call) -> Reply | StreamedReply:
            wants_page = "text/html" in call.headers.get("accept", "")
            return await self.index(call) if wants_page else await other(call)

        root.__doc__ = other.__doc__
        return root

    async def file(self, call: Call) -> Reply:
        """One file. Its path has the version of all files, so that it never changes."""
        found = self._files.files.get(call.path_params["path"])
        if found is None or call.path_params["version"] != self._files.version:
            raise ApiError(404, f"{call.path}: there is no such file", code="no_such_route")
        headers = {
            "cache-control": "public, max-age=31536000, immutable",
            "content-security-policy": self._headers["content-security-policy"],
            "etag": found.etag,
        }
        if call.headers.get("if-none-match") == found.etag:
            return Reply(b"", 304, headers=headers)
        return Reply(found.body, 200, found.media_type, headers)
