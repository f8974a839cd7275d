"""The ASGI application: the routes of the server, and the checks before them."""

import inspect
from collections.abc import Callable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from pellucid.async_engine import AsyncLLMEngine
from pellucid.observing.page_files import page_files
from pellucid.server.access import Access, refusal
from pellucid.server.api_keys import Caller, Role
from pellucid.server.api_reference import ApiReference
from pellucid.server.body_memory import BodyMemory
from pellucid.server.config import ServerConfig
from pellucid.server.endpoint import Call, Endpoint, Handler, Reply, StreamClock
from pellucid.server.errors import ApiError
from pellucid.server.event_routes import EventRoutes
from pellucid.server.field_tables import FIELD_TABLES
from pellucid.server.generation import GenerationService
from pellucid.server.health import Health
from pellucid.server.metrics_route import MetricsRoute
from pellucid.server.openapi import OpenApi, Operation
from pellucid.server.page.compare_routes import CompareRoutes
from pellucid.server.page.estimate_routes import EstimateRoutes
from pellucid.server.page.file_routes import PageRoutes
from pellucid.server.page.fork_routes import ForkRoutes
from pellucid.server.page.inspection_routes import InspectionRoutes
from pellucid.server.page.load_routes import LoadRoutes
from pellucid.server.protocols.anthropic_api.routes import Messages
from pellucid.server.protocols.ollama_api.model_routes import OllamaModels
from pellucid.server.protocols.ollama_api.routes import Ollama
from pellucid.server.protocols.openai_chat_api.routes import ChatCompletions
from pellucid.server.protocols.openai_completions_api.routes import Completions
from pellucid.server.protocols.openai_models import Models
from pellucid.server.protocols.openai_responses_api.routes import Responses
from pellucid.server.protocols.tokens import Tokens
from pellucid.server.request_routes import RequestRoutes
from pellucid.server.served_engine import ServedEngine
from pellucid.server.served_model import ServedModel
from pellucid.server.serving import Serving

# llama.cpp serves these without /v1 too, and clients rely on it. Its /completions is another protocol.
ALSO_UNPREFIXED = (
    "/v1/chat/completions",
    "/v1/chat/completions/input_tokens",
    "/v1/models",
    "/v1/responses",
)
EXPOSED_HEADERS = ("x-request-id", "x-pellucid-warnings", "retry-after")  # to pages of other hosts


def make_serving(engine: ServedEngine, config: ServerConfig) -> Serving:
    return Serving(
        config,
        ServedModel(config.model_names, engine),
        GenerationService(engine, config.limits, config.api_keys.callers, config.isolate_keys),
        BodyMemory(config.limits.max_held_body_bytes),
    )


def make_app(serving: Serving) -> ASGIApp:
    """The ASGI application of one engine.

    Args:
        serving: its parts. The caller shuts the engine down.
    """
    config = serving.config
    routed = Starlette(routes=_routes(serving), exception_handlers={HTTPException: _no_such_route})
    routed.router.redirect_slashes = False  # a redirect would repeat the client's Host
    app: ASGIApp = Access(routed, config)
    if config.allowed_origins:
        app = CORSMiddleware(
            app,
            allow_origins=config.allowed_origins,
            allow_methods=("GET", "HEAD", "POST"),
            allow_headers=("*",),
            expose_headers=EXPOSED_HEADERS,
        )
    return app


def _routes(serving: Serving) -> list[Route]:
    config = serving.config
    clock = StreamClock(config.keepalive_seconds)

    operations: list[Operation] = []

    service = serving.service

    def route(
        method: str,
        path: str,
        handler: Handler,
        role: Role = Role.INFERENCE,
        gate: Callable[[Caller], None] = lambda caller: None,
    ) -> Route:
        operations.append(Operation(method, path, handler, role is Role.ADMIN))
        endpoint = Endpoint(handler, config.limits, clock, serving.bodies, role, gate)
        return Route(path, endpoint, methods=[method])

    is_one_engine = isinstance(service.engine, AsyncLLMEngine)

    def looking(method: str, path: str, handler: Handler, role: Role = Role.INFERENCE) -> Route:
        """A route that looks into one engine."""
        return route(
            method, path, handler if is_one_engine else _refuse_for_replicas(handler), role
        )

    def generating(path: str, handler: Handler) -> Route:
        return route("POST", path, handler, gate=service.check_room)

    def on_text(path: str, handler: Handler) -> Route:
        return route("POST", path, handler, gate=service.check_text_room)

    chat = ChatCompletions(serving)
    health, models, responses, messages, tokens, ollama, ollama_models = (
        Health(serving),
        Models(serving),
        Responses(serving),
        Messages(serving),
        Tokens(serving),
        Ollama(serving),
        OllamaModels(serving),
    )
    root = ollama_models.root
    requests, events, page = RequestRoutes(serving), EventRoutes(serving), PageRoutes()
    inspection = InspectionRoutes(serving)
    routes = [
        route("GET", "/v1/requests", requests.under_way),
        route("POST", "/v1/requests/{id}/cancel", requests.cancel),
        route("GET", "/v1/explain/{id}", requests.explain),
        route("GET", "/v1/events", events.events),
        route("GET", "/v1/snapshot", events.snapshot),
        route("GET", "/v1/kv", requests.kv, Role.ADMIN),
        looking("GET", "/v1/kv/blocks/{block_id}", inspection.block, Role.ADMIN),
        looking("GET", "/v1/kv/tree", inspection.tree, Role.ADMIN),
        looking("POST", "/v1/page/fork", ForkRoutes(serving).fork, Role.ADMIN),
        route("POST", "/v1/load", LoadRoutes(serving).load, Role.ADMIN),
        looking("POST", "/v1/compare", CompareRoutes(serving).compare, Role.ADMIN),
        looking("GET", "/v1/estimate", EstimateRoutes(serving).estimate),
        looking("GET", "/v1/logits/{id:path}/{position}", inspection.logits),
        looking("GET", "/v1/attn/{id:path}/{position}", inspection.attention),
        route("GET", "/metrics", MetricsRoute(serving), Role.ADMIN),
        route("GET", "/health", health.health),
        route("GET", "/ready", health.ready),
        route("GET", "/v1/models", models.list),
        route("GET", "/v1/models/{model:path}", models.retrieve),
        generating("/v1/completions", Completions(serving)),
        generating("/v1/chat/completions", chat),
        on_text("/v1/chat/completions/input_tokens", chat.input_tokens),
        generating("/v1/responses", responses.create),
        on_text("/v1/responses/input_tokens", responses.input_tokens),
        generating("/v1/messages", messages.create),
        on_text("/v1/messages/count_tokens", messages.count_tokens),
        on_text("/tokenize", tokens.tokenize),
        on_text("/detokenize", tokens.detokenize),
        on_text("/apply-template", tokens.apply_template),
        route("GET", "/tokenizer_info", tokens.tokenizer_info),
        route("GET", "/props", tokens.props),
        route("GET", "/", page.index_for_browsers(root) if is_one_engine else root),
        looking("GET", "/page", page.index),
        route("GET", "/page/{version}/{path:path}", page.file),
        route("GET", "/api/version", ollama_models.version),
        route("GET", "/api/tags", ollama_models.tags),
        route("GET", "/api/ps", ollama_models.ps),
        route("POST", "/api/show", ollama_models.show),
        generating("/api/generate", ollama.generate),
        generating("/api/chat", ollama.chat),
    ]
    api = OpenApi(operations, FIELD_TABLES, serving.model.name)
    reference = ApiReference(api.document, page_files())
    unprefixed = [
        Route(each.path.removeprefix("/v1"), each.endpoint, methods=each.methods)
        for each in routes
        if each.path in ALSO_UNPREFIXED
    ]
    documents = [route("GET", "/openapi.json", api), route("GET", "/docs", reference)]
    return [*routes, *unprefixed, *documents]


def _refuse_for_replicas(handler: Handler) -> Handler:
    """A handler that refuses what `handler` does: it looks into one engine, and there are several."""

    async def refuse(call: Call) -> Reply:
        message = f"{call.path}: looks into one engine, and this server has replicas; start it without --replicas"
        raise ApiError(501, message, code="needs_one_engine")

    refuse.__doc__ = (
        handler.__doc__ if inspect.isroutine(handler) else type(handler).__call__.__doc__
    )
    return refuse


async def _no_such_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = request.scope["path"]
    message = (
        f"{request.method} is not allowed here"
        if error.status_code == 405
        else "there is no such route"
    )
    request_id, _ = request.scope["pellucid"]
    refused = ApiError(
        error.status_code, f"{path}: {message}", code="no_such_route", headers=error.headers or {}
    )
    return refusal(refused, path, request_id)
