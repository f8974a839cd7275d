"""Runs a server until a signal: the first one drains it, the second one ends it at once."""

import asyncio
import gc
import logging
import resource
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn

from pellucid.async_engine import AsyncLLMEngine
from pellucid.server.app import make_app, make_serving
from pellucid.server.config import ServerConfig
from pellucid.server.generation import GenerationService
from pellucid.server.http_protocol import bounded_http_protocol
from pellucid.server.served_engine import ServedEngine
from pellucid.server.serving import Serving
from pellucid.server.telemetry import Telemetry

_log = logging.getLogger("pellucid.server")

BACKLOG = 2048
OTHER_FILES = 256  # open besides connections
LOOK_SECONDS = 0.1  # between two looks at what is under way, of a server that ends
# Objects, and younger collections, before a collection of each generation. By default one comes every 700 objects,
# which are two calls: a fifth of the event loop's time. Little of what a call leaves behind is in cycles.
GARBAGE_THRESHOLDS = (50_000, 20, 50)
GOODBYE_SECONDS = 5.0  # for sending the last replies after all requests have ended


def run_server(
    engine: ServedEngine,
    config: ServerConfig,
    on_listening: Callable[[str], None],
) -> None:
    """Serves until SIGINT or SIGTERM; the engine is shut down afterwards.

    Args:
        engine: used by this server alone.
        config: the server's settings.
        on_listening: called with the URL once connections are accepted.

    Raises:
        OSError: the address cannot be listened on.
    """
    _allow_open_files(config.limits.max_connections + OTHER_FILES)
    with listen(config) as listener:
        serving = make_serving(engine, config)
        serving.model.tokenizer.make_whole()
        _ = serving.model.identity  # before clients ask: it may read all weights once
        server = DrainingServer(make_uvicorn_config(config, make_app(serving)), serving.service)
        host, port = listener.getsockname()[:2]
        end_telemetry = _start_telemetry(serving)
        end_kv_events = _start_kv_events(serving)
        # What exists now lives as long as the process. A full collection of it would stop all streams for 40 ms.
        gc.freeze()
        thresholds = gc.get_threshold()
        gc.set_threshold(*GARBAGE_THRESHOLDS)
        on_listening(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}")
        try:
            server.run(sockets=[listener])
        finally:
            gc.set_threshold(*thresholds)
            gc.unfreeze()
            asyncio.run(engine.shutdown())
            end_kv_events()
            end_telemetry()


def _start_telemetry(serving: Serving) -> Callable[[], None]:
    """Starts sending telemetry to the collector, if one is configured. Returns a function that stops it."""
    endpoint = serving.config.otlp_endpoint
    if endpoint is None:
        return lambda: None
    telemetry, end = Telemetry.exporting(endpoint, serving.model.name)
    serving.service.on_ended.append(telemetry.record)
    return end


def _start_kv_events(serving: Serving) -> Callable[[], None]:
    """Starts publishing KV events, if an address is configured. Returns a function that stops it."""
    config = serving.config.kv_events
    if config is None:
        return lambda: None
    try:
        from pellucid.server.kv_events.publisher import KVEventPublisher
    except ImportError:
        raise ValueError("kv_events: needs ZeroMQ: pip install 'pellucid[kv-events]'") from None
    engine = serving.service.engine
    if not isinstance(engine, AsyncLLMEngine):
        raise ValueError(
            "kv_events: replicas have a router of their own; leave replicas or kv_events out"
        )
    return KVEventPublisher.of(engine, config).close


def _allow_open_files(number: int) -> None:
    """Raises the process's limit of open files, as every connection is one; warns if the system does not allow it."""
    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed != resource.RLIM_INFINITY and allowed < number:
        if most != resource.RLIM_INFINITY and most < number:
            _log.warning(
                "at most %d files can be open, for %d connections: see ulimit -n", most, number
            )
            number = most
        resource.setrlimit(resource.RLIMIT_NOFILE, (number, most))


def listen(config: ServerConfig) -> socket.socket:
    """A listening socket. Connections are accepted from now on and wait until the server runs."""
    try:
        found = socket.getaddrinfo(
            config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except socket.gaierror as error:
        raise ValueError(f"host={config.host!r}: {error.strerror}") from None
    family, kind, protocol, _, address = found[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise OSError(error.errno, error.strerror, f"{config.host}:{config.port}") from None
    return listener


def make_uvicorn_config(config: ServerConfig, app: object) -> uvicorn.Config:
    return uvicorn.Config(
        app,  # type: ignore[arg-type]
        http=bounded_http_protocol(config.limits),
        ws="none",
        lifespan="off",
        loop="uvloop",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        backlog=BACKLOG,
        timeout_graceful_shutdown=int(GOODBYE_SECONDS),
    )


class DrainingServer(uvicorn.Server):
    """Keeps accepting connections while unfinished requests end, and answers new requests with a 503.

    Args:
        config: uvicorn's.
        service: has the unfinished requests.
    """

    def __init__(self, config: uvicorn.Config, service: GenerationService) -> None:
        super().__init__(config)
        self._service = service
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_ending = asyncio.Event()

    def end(self) -> None:
        """Ends at once, whatever is under way. From any thread."""
        self.should_exit = self.force_exit = True
        self._wake()

    def _wake(self) -> None:
        if self._loop is None:
            self._is_ending.set()
        else:
            self._loop.call_soon_threadsafe(self._is_ending.set)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._service.is_draining:
            # Otherwise uvicorn writes a traceback for each reply that it cuts off.
            logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
            self.end()
            return
        self._service.is_draining = True
        self._wake()
        num_unfinished = len(self._service.under_way)
        if num_unfinished:
            _log.warning(
                "waiting for %d requests to end; a second signal ends them", num_unfinished
            )

    async def main_loop(self) -> None:
        """Sleeps until a signal, then looks whether the last request has ended. uvicorn's own loop would wake an idle
        machine ten times a second."""
        self._loop = asyncio.get_running_loop()
        await self._is_ending.wait()
        while self._service.under_way and not self.should_exit:
            await asyncio.sleep(LOOK_SECONDS)
