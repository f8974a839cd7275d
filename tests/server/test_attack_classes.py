"""One test for each class of attack that inference servers had: the listing of this file is the list.

Each test tries the attack of its class on a running server, or checks the rule that excludes the class. What defends
against a class in detail is tested where it is built; the docstrings say where.
"""

import ast
import json
import re
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pellucid.inputs.config import EngineConfig
from pellucid.loaded_model import load_model
from pellucid.observing.page_files import page_files
from pellucid.server.config import Limits
from support.api_keys import ADMIN_KEY, KEYS, OTHER_KEY, USER_KEY
from support.bundled import bundled_engine
from support.http_server import TIMEOUT, HttpReply, RunningServer, running_server
from support.scripted_model import scripted_engine

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src/pellucid"
GOOD = {"prompt": [5, 2, 3], "max_tokens": 12, "seed": 7, "temperature": 0.9, "logprobs": 2}
MESSAGES = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    """The bundled model, with keys and small limits."""
    limits = Limits(max_header_bytes=4096, max_body_bytes=1 << 20, max_prompts=8)
    with running_server(bundled_engine(), api_keys=KEYS, limits=limits) as running:
        yield running
        running.wait_until_idle()


def call(server: RunningServer, path: str, body: Any = None, key: str = USER_KEY) -> HttpReply:
    return server.call(
        "GET" if body is None else "POST", path, body, {"authorization": f"Bearer {key}"}
    )


def complete(server: RunningServer, **fields: Any) -> Any:
    reply = call(server, "/v1/completions", {**GOOD, **fields})
    assert reply.status == 200, reply.body
    return reply.json["choices"]


def names_called(*names: str, folder: Path = SOURCES) -> set[str]:
    """Which of these names the sources in a folder call or import."""
    found = set()
    word = re.compile("|".join(names))  # few files have one of them; to parse all takes seconds
    for path in folder.rglob("*.py"):
        if not word.search(text := path.read_text()):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                found.add(node.module.partition(".")[0])
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                found.add(node.func.id)
    return found & set(names)


@contextmanager
def listener() -> Iterator[tuple[int, list[bytes]]]:
    """A port of this machine, and what anybody sends to it."""
    received: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as sock:

        def accept() -> None:
            while True:
                try:
                    connection, _ = sock.accept()
                except OSError:
                    return
                with connection:
                    received.append(b"connected")

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield sock.getsockname()[1], received
        sock.shutdown(socket.SHUT_RDWR)
        thread.join(TIMEOUT)


# -- models and their files ------------------------------------------------------------------------


def test_unsafe_deserialization() -> None:
    """Remote code by pickle, torch.load and dill: nothing here can read any of them."""
    formats = ("pickle", "dill", "cloudpickle", "marshal", "shelve", "joblib", "yaml")
    assert names_called(*formats) == set()
    text = "".join(path.read_text() for path in SOURCES.rglob("*.py"))
    assert "allow_pickle=True" not in text
    # The backend on PyTorch computes with it, and reads no file by it.
    readers = "load|jit|hub|package|serialization|export|classes"
    assert not re.search(rf"\btorch\.({readers})\b|from torch import .*\b({readers})\b", text)
    assert not re.search(r"\brecv_(pyobj|json|serialized)\b", text)  # of ZeroMQ: bytes alone


def test_remote_code_from_a_model_repository(tmp_path: Path) -> None:
    """`auto_map` and a module in the directory of a model: nothing of it is run; what is run stands in this project."""
    source = Path(load_model(EngineConfig()).path)
    for file in source.iterdir():
        if file.name not in ("config.json", "SHA256SUMS"):
            (tmp_path / file.name).symlink_to(file)
    config = json.loads((source / "config.json").read_text())
    config["auto_map"] = {"AutoModelForCausalLM": "modeling_evil.Evil", "AutoConfig": "evil.Config"}
    config["trust_remote_code"] = True
    (tmp_path / "config.json").write_text(json.dumps(config))
    trap = f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Evil: pass\nclass Config: pass\n"
    for name in ("modeling_evil.py", "evil.py", "setup.py", "__init__.py", "conftest.py"):
        (tmp_path / name).write_text(trap)
    load_model(EngineConfig(str(tmp_path)))
    assert not (tmp_path / "ran").exists()
    assert names_called("eval", "exec", "runpy", "__import__") == set()


def test_chat_template_injection(server: RunningServer) -> None:
    """A request brings no template, and its variables replace neither the messages nor the sandbox's own names.
    Hostile templates of models: tests/unit/test_chat_template.py."""
    template = "{{ ''.__class__.__mro__ }}"
    body = {"messages": MESSAGES}
    reply = call(server, "/v1/chat/completions", {**body, "chat_template": template})
    assert reply.status == 400 and "chat_template" in reply.json["error"]["message"]
    for name in ("messages", "tools", "chat_template", "raise_exception"):
        fields = {**body, "chat_template_kwargs": {name: template}}
        reply = call(server, "/apply-template", fields)
        plain = call(server, "/apply-template", body)
        assert reply.status == 400 or reply.json == plain.json, name


@pytest.mark.parametrize("size", [2**63 - 1, 2**32, 10**6])
def test_model_file_parser_memory_errors(tmp_path: Path, size: int) -> None:
    """Sizes that a file declares are compared with the file. Mutations of all formats: tests/hostile."""
    safetensors = tmp_path / "model.safetensors"
    safetensors.write_bytes(struct.pack("<Q", size) + b'{"a":1}')
    (tmp_path / "config.json").write_text("{}")
    gguf = tmp_path / "model.gguf"
    gguf.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, size, size))
    for path in (tmp_path, gguf):
        with pytest.raises((ValueError, OSError)):
            load_model(EngineConfig(str(path)))


def test_kv_state_file_parser(tmp_path: Path) -> None:
    """Files of cached blocks are changed between two runs: they are no hits, and the answer is the same. Every kind of
    damage: tests/unit/test_prefix_store.py."""
    body = {**GOOD, "prompt": list(range(2, 130))}
    knobs: dict[str, Any] = {"prefix_store": str(tmp_path / "cache"), "block_size": 16}
    with running_server(bundled_engine(**knobs)) as first:
        answer = first.post("/v1/completions", body).json["choices"]
        first.wait_until(lambda: len([*tmp_path.rglob("*.kv")]) >= 7, "blocks on disk")
    for number, path in enumerate(sorted(tmp_path.rglob("*.kv"))):
        data = path.read_bytes()
        longer, shorter = data + data, data[: len(data) // 2]
        path.write_bytes([longer, shorter, b"\xff" * len(data)][number % 3])
    with running_server(bundled_engine(**knobs)) as second:
        reply = second.post("/v1/completions", body).json
        assert reply["choices"] == answer
        assert reply["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


# -- requests --------------------------------------------------------------------------------------


def test_parameters_that_crash_the_engine(server: RunningServer) -> None:
    """Each is refused or answered, and the answers of others stay the same. Random bodies: test_malformed.py."""
    alone = complete(server)
    for fields in (
        {"max_tokens": -1},
        {"n": -1},
        {"n": 10**9},
        {"best_of": 2**63},
        {"top_k": 2**63},
        {"min_p": float("1e308")},
        {"logit_bias": {"-1": 1}},
        {"logit_bias": {str(2**40): 1}},
        {"allowed_token_ids": [2**31]},
        {"stop_token_ids": [-5]},
        {"prompt": [2**31]},
        {"prompt": [[]]},
        {"cache_salt": "\x00\ud83e" * 20},
        {"cache_salt": "a" * 10**5},
        {"repetition_penalty": 1e6, "frequency_penalty": 2},
        {"structured_outputs": {"regex": "(" * 500}},
        {"structured_outputs": {"json": {"$ref": "#"}}},
        {"structured_outputs": {"grammar": "start: start"}},
        {"structured_outputs": {"choice": ["a"], "regex": "a"}},
        {"bad_words": [""]},
        {"thinking_token_budget": -7},
    ):
        reply = call(server, "/v1/completions", {**GOOD, **fields})
        assert reply.status in (200, 400), (fields, reply.body)
        assert "internal" not in reply.body.decode().lower()
    assert complete(server) == alone
    assert server.get("/health").status == 200


def test_state_of_one_request_in_another(server: RunningServer) -> None:
    """Masks, biases, bad words and log-probabilities of neighbours in the same steps, which come and go."""
    alone = complete(server)
    neighbours: list[dict[str, Any]] = [
        {"allowed_token_ids": [7, 8]},
        {"bad_words": ["the", "a", "one"], "logprobs": 5},
        {"logit_bias": {str(token_id): 100 for token_id in range(50)}},
        {"structured_outputs": {"choice": ["yes", "no"]}},
        {"repetition_penalty": 9.0, "presence_penalty": 2.0, "top_k": 1},
    ]
    found: list[Any] = []

    def ask(fields: dict[str, Any], keep: bool) -> None:
        for number in range(3):
            choices = complete(server, **fields, **({} if keep else {"max_tokens": 3 + 4 * number}))
            if keep:
                found.append(choices)

    threads = [threading.Thread(target=ask, args=(fields, False)) for fields in neighbours]
    threads += [threading.Thread(target=ask, args=({}, True)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [alone] * 9


def test_prefix_cache_side_channel(server: RunningServer) -> None:
    """Callers with other keys, and other salts of one key, share no block. Hashes that collide: a hit compares tokens,
    tests/unit/test_block_pool.py and test_prefix_store.py."""
    body = {**GOOD, "prompt": list(range(3, 200))}

    def cached(key: str, **fields: Any) -> int:
        usage = call(server, "/v1/completions", {**body, **fields}, key).json["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    assert [cached(USER_KEY), cached(USER_KEY), cached(OTHER_KEY)] == [0, 192, 0]
    assert [cached(USER_KEY, cache_salt="s") for _ in range(2)] == [0, 192]
    assert cached(ADMIN_KEY, cache_salt="s") == 0


def test_grammar_and_regex_denial_of_service(server: RunningServer) -> None:
    """While rules that never end are compiled, or refused, others get their answers."""
    rules: list[dict[str, Any]] = [
        {"regex": "(a{1,1000}){1,1000}b"},
        {"regex": "((((.*)*)*)*)*" * 50},
        {"json": {"type": "array", "items": {"enum": [f"{n}" * 50 for n in range(3000)]}}},
        {"grammar": 'start: "a"{100000} start "b" start | "c"'},
        {"choice": [f"{n}" * 9 for n in range(4000)]},
    ]
    replies: list[int] = []

    def ask(rule: dict[str, Any]) -> None:
        fields = {**GOOD, "max_tokens": 2, "structured_outputs": rule}
        replies.append(call(server, "/v1/completions", fields).status)

    threads = [threading.Thread(target=ask, args=(rule,)) for rule in rules]
    for thread in threads:
        thread.start()
    assert complete(server)
    for thread in threads:
        thread.join(60)
    assert len(replies) == len(rules) and set(replies) <= {200, 400}


def test_resource_exhaustion_by_http(server: RunningServer) -> None:
    """Large heads and bodies, and compressed ones. Slow ones: test_access.py, test_calls.py."""
    key = {"authorization": f"Bearer {USER_KEY}"}
    large = server.call("GET", "/v1/models", headers={**key, "x-large": "a" * 10_000})
    assert large.status in (400, 431)
    assert call(server, "/v1/completions", b"[" * (2 << 20)).status == 413
    assert call(server, "/v1/completions", b"[" * 100_000).status == 400
    gzip = server.call("POST", "/v1/completions", b"\x1f\x8b", {**key, "content-encoding": "gzip"})
    assert gzip.status == 415


def test_fan_out_of_a_list_of_prompts(server: RunningServer) -> None:
    """Prompts times n counts against the limits before any work; the numbers: test_calls.py."""
    for fields in ({"prompt": [[1]] * 9}, {"prompt": [[1]] * 8, "n": 64}, {"prompt": [], "n": 4}):
        reply = call(server, "/v1/completions", {**GOOD, **fields})
        assert reply.status == 400 and reply.json["error"]["param"] in ("prompt", "n")


def test_a_template_that_blocks_a_worker(server: RunningServer) -> None:
    """A long conversation is rendered beside the engine's steps and other calls: tests/unit/test_chat_template.py has
    templates that never end."""
    long = [{"role": role, "content": "x " * 50} for role in ("user", "assistant")] * 500
    threads = [
        threading.Thread(target=call, args=(server, "/apply-template", {"messages": long}))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    started = time.monotonic()
    complete(server)
    assert time.monotonic() - started < 30
    for thread in threads:
        thread.join(60)


def test_a_check_on_one_route_only(server: RunningServer) -> None:
    """What is refused on one route is refused on all, with a status of 400, and the engine lives: one typed request
    stands behind all routes."""
    words = "a" * 10**5
    bodies: dict[str, dict[str, Any]] = {
        "/v1/completions": {"prompt": "Hi", "stop": [words]},
        "/v1/chat/completions": {"messages": MESSAGES, "stop": [words]},
        "/v1/messages": {"messages": MESSAGES, "max_tokens": 5, "stop_sequences": [words]},
        "/api/generate": {"model": "tested", "prompt": "Hi", "options": {"stop": [words]}},
        "/api/chat": {"model": "tested", "messages": MESSAGES, "options": {"stop": [words]}},
    }
    for path, body in bodies.items():
        assert call(server, path, body).status == 400, path
    server_files = (SOURCES / "server").rglob("*.py")
    starts = {path.name for path in server_files if ".add_request(" in path.read_text()}
    assert starts == {"generation.py", "compare_routes.py"}  # the latter on an engine of its own
    assert server.get("/health").status == 200 and complete(server)


def test_reasoning_state_of_a_neighbour() -> None:
    """Budgets and prompts that close the reasoning, side by side: each answer is what it is alone."""
    engine = scripted_engine("<think>One two three four five six.</think>Seven.", max_num_seqs=8)
    with running_server(engine) as scripted:
        variants: list[dict[str, Any]] = [
            {},
            {"thinking_token_budget": 2},
            {"thinking_token_budget": 0},
            {"chat_template_kwargs": {"enable_thinking": False}},
        ]

        def ask(fields: dict[str, Any]) -> Any:
            body = {"messages": MESSAGES, "temperature": 0, "max_tokens": 60, **fields}
            reply = scripted.post("/v1/chat/completions", body).json
            return reply["choices"], reply["usage"]

        alone = [ask(fields) for fields in variants]
        assert len({json.dumps(choices) for choices, _ in alone}) >= 3
        together: dict[int, Any] = {}
        threads = [
            threading.Thread(
                target=lambda n=number: together.update({n: ask(variants[n % len(variants)])})
            )
            for number in range(12)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert [together[number] for number in range(12)] == alone * 3


def test_request_ids_of_the_client(server: RunningServer) -> None:
    """Ids are the server's: no id that a client sends, and no beginning of one, names a request of another caller."""
    reply = server.call(
        "POST",
        "/v1/completions",
        GOOD,
        {"authorization": f"Bearer {USER_KEY}", "x-request-id": "1", "request-id": "a"},
    )
    own = reply.headers["x-request-id"]
    assert len(own) >= 16 and own not in ("1", "a")
    for name in (own, own[:1], own[:8], "1", "*", ""):
        assert call(server, f"/v1/explain/{name}", key=OTHER_KEY).status in (404, 405)
        assert call(server, f"/v1/requests/{name}/cancel", {}, OTHER_KEY).status in (404, 405)
    assert call(server, f"/v1/explain/{own}").status == 200


def test_model_names_as_hosts_and_paths(server: RunningServer) -> None:
    """The name of a model selects what is served, and is never fetched or opened."""
    with listener() as (port, received):
        for name in (
            f"http://127.0.0.1:{port}/model",
            f"127.0.0.1:{port}/library/model:latest",
            f"//127.0.0.1:{port}/x",
            "../../../../etc/passwd",
            "file:///etc/passwd",
        ):
            assert call(server, "/v1/completions", {**GOOD, "model": name}).status == 404
            assert call(server, "/api/show", {"model": name}).status == 404
    assert received == []


def test_server_side_request_forgery(server: RunningServer) -> None:
    """Addresses in a request are never fetched: images, files, schemas, tools and headers."""
    with listener() as (port, received):
        url = f"http://127.0.0.1:{port}/secret"
        parts: list[Any] = [
            [{"type": "image_url", "image_url": {"url": url}}],
            [{"type": "image_url", "image_url": url}],
            [{"type": "input_file", "file_url": url}],
            [{"type": "image", "source": {"type": "url", "url": url}}],
        ]
        for part in parts:
            messages = [{"role": "user", "content": part}]
            body = {"messages": messages, "max_tokens": 1}
            items = {"input": messages, "max_output_tokens": 1}
            assert call(server, "/v1/chat/completions", body).status == 200  # a placeholder
            assert call(server, "/v1/messages", body).status == 200
            assert call(server, "/v1/responses", items).status == 200
        rule = {"json": {"$ref": url}}
        assert call(server, "/v1/completions", {**GOOD, "structured_outputs": rule}).status == 400
        tools = [{"type": "mcp", "server_url": url, "server_label": "x"}]
        call(server, "/v1/responses", {"input": "Hi", "tools": tools, "max_output_tokens": 1})
        headers = {"authorization": f"Bearer {USER_KEY}", "x-request-id": url, "referer": url}
        server.call("POST", "/v1/completions", GOOD, headers)
    assert received == []
    clients = names_called("urllib", "httpx", "requests", "aiohttp", folder=SOURCES / "server")
    assert clients <= {"urllib"}  # to parse queries


# -- access ----------------------------------------------------------------------------------------


def test_authentication_and_authorisation(server: RunningServer) -> None:
    """Every route needs a key, in constant time, and those that show others an admin's. More: test_access.py."""
    document = call(server, "/openapi.json").json
    for path, methods in document["paths"].items():
        place = re.sub(r"\{[^}]*\}", "1", path)
        if place in ("/", "/page", "/health") or place.startswith("/page/"):
            continue
        for method in methods:
            reply = server.call(method.upper(), place, b"{}" if method == "post" else None)
            assert reply.status == 401, (method, path)
    for path in ("/v1/kv", "/metrics", "/v1/kv/tree"):
        assert call(server, path).status == 403
        assert call(server, path, key=ADMIN_KEY).status == 200
    assert "compare_digest" in (SOURCES / "server/api_keys.py").read_text()


def test_a_host_that_poisons_the_path(server: RunningServer) -> None:
    """The path that is authorised is the one that is routed, whatever Host and the target say."""
    for host in ("127.0.0.1/health?", "127.0.0.1:80/health#", "evil.example"):
        reply = server.call("GET", "/v1/models", headers={"host": host})
        assert reply.status in (400, 401, 403, 421), host
    for path in ("//health", "/health/../v1/models", "/%68ealth/v1", "/health;/v1/models"):
        assert server.call("GET", path).status in (401, 404), path


def test_path_traversal(server: RunningServer) -> None:
    """Files have the names that the server gives them. There are no uploads and no archives."""
    version = page_files().version
    for path in (
        f"/page/{version}/../page_files.py",
        f"/page/{version}/%2e%2e/%2e%2e/config.py",
        f"/page/{version}//etc/passwd",
        f"/page/{version}/README.md",
        "/page/000000000000/app.js",
        "/v1/explain/..%2f..%2fetc%2fpasswd",
        "/v1/models/..%2f..%2fconfig.json",
    ):
        assert call(server, path, key=ADMIN_KEY).status == 404, path
    assert names_called("zipfile", "tarfile", "shutil.unpack_archive") == set()


def test_scripts_in_answers() -> None:
    """Texts of models and clients are text: policies that forbid scripts in pages, and no page inserts HTML. What a
    browser does with them: tests/page."""
    with running_server(scripted_engine("<script>alert(1)</script>")) as scripted:
        page = scripted.call("GET", "/", headers={"accept": "text/html"})
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy or "default-src 'self'" in policy
        assert "unsafe-inline" not in policy.partition("style-src")[0]
        assert "require-trusted-types-for 'script'" in policy
        reply = scripted.post("/v1/chat/completions", {"messages": MESSAGES})
        assert reply.headers["content-type"].startswith("application/json")
        assert reply.headers.get("x-content-type-options") == "nosniff"
        docs = scripted.call("GET", "/docs")
        assert (
            "script-src" not in docs.headers["content-security-policy"]
            or b"<script" not in docs.body
        )
    scripts = [p for p in (SOURCES / "web").rglob("*.js") if "vendor" not in p.parts]
    for path in scripts:
        text = path.read_text()
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text)


# -- processes -------------------------------------------------------------------------------------


def test_lifecycle_races(server: RunningServer) -> None:
    """Clients that leave at any moment of any route, also while text is encoded. Streams of all ages:
    tests/unit/test_async_engine.py and test_many_clients.py."""
    bodies: list[tuple[str, dict[str, Any]]] = [
        ("/v1/completions", {**GOOD, "prompt": "word " * 400, "stream": True}),
        ("/v1/chat/completions", {"messages": MESSAGES, "stream": True}),
        ("/tokenize", {"prompt": "word " * 5000}),
        ("/v1/messages/count_tokens", {"messages": MESSAGES * 50}),
    ]
    alone = complete(server)
    for number in range(40):
        path, body = bodies[number % len(bodies)]
        with server.open_call(path, body, authorization=f"Bearer {USER_KEY}") as connection:
            if number % 3:
                connection.recv(1 + number * 20)
    assert complete(server) == alone
    server.wait_until_idle()


def test_internal_sockets() -> None:
    """Threads of one process share memory; no socket is made but the server's own, those of --kv-events, that of
    `pellucid stage`, and the end that a replica has of a pair without an address. What a process listens on:
    test_restart.py. What a stage takes from whom: tests/unit/test_stage_wire.py."""
    makers = {
        path.name
        for path in SOURCES.rglob("*.py")
        if re.search(r"socket\.(socket|create_server)\(|start_server\(|\bzmq\b", path.read_text())
    }
    assert makers == {"run.py", "publisher.py", "replica_main.py", "stage_server.py"}
    replica = (SOURCES / "cluster/replica_main.py").read_text()
    assert re.findall(r"socket\.socket\((\w+=?)", replica) == ["fileno="]


def test_a_test_dependency_that_was_taken_over() -> None:
    """Foreign clients are installed by the hashes of their files, in an environment of their own."""
    lines = (ROOT / "tests/integrations/requirements.txt").read_text().splitlines()
    pinned = [line for line in lines if line and not line.startswith("#")]
    assert pinned and all(re.search(r"==\S+ .*--hash=sha256:[0-9a-f]{64}", line) for line in pinned)
    assert "install --require-hashes" in (ROOT / "Makefile").read_text()
