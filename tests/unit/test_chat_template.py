"""Chat templates: the texts that they render, and the limits of their worker processes."""

import gc
import os
import re
import shutil
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pellucid.text.chat_template import (
    DEFAULT_LIMITS,
    ChatTemplate,
    RenderingTime,
    TemplateTimeoutError,
    TemplateWorkers,
)

MESSAGES = [
    {"role": "user", "content": "Hi, 你好!"},
    {"role": "assistant", "content": "Hello"},
    {"role": "user", "content": "<b>&"},
]
SPECIAL_TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
HARMLESS = "{% for m in messages %}[{{ m.role }}]{{ m['content'] }}{{ eos_token }}{% endfor %}"


def render(source: str, **variables: object) -> str:
    return ChatTemplate(source, SPECIAL_TOKENS, "tiny").render(MESSAGES, variables=variables)


def limited(source: str, **limits: float) -> ChatTemplate:
    return ChatTemplate(source, {}, "tiny", TemplateWorkers(replace(DEFAULT_LIMITS, **limits)))


def test_a_conversation() -> None:
    template = ChatTemplate("{{ bos_token }}" + HARMLESS, SPECIAL_TOKENS)
    text = "<s>[user]Hi, 你好!</s>[assistant]Hello</s>[user]<b>&</s>"
    assert template.render(MESSAGES) == text
    assert template.render(MESSAGES[:1]) == "<s>[user]Hi, 你好!</s>"  # by the same worker


@pytest.mark.parametrize(
    ("source", "text"),
    [
        # blocks take their own line and its indent with them
        ("a\n  {% if true %}\nb\n  {% endif %}\nc", "a\nb\nc"),
        ("{{ messages[2] | tojson }}", '{"role": "user", "content": "<b>&"}'),
        ("{{ messages[0].content | tojson }}", '"Hi, 你好!"'),
        ("{{ {'b': 1, 'a': 2} | tojson(indent=1, sort_keys=true) }}", '{\n "a": 2,\n "b": 1\n}'),
        ("{% for m in messages %}{% if loop.index0 == 1 %}{% break %}{% endif %}x{% endfor %}", "x"),
        ("{% generation %}{{ messages[1].content }}{% endgeneration %}", "Hello"),
        ("{{ 'set' if tools is not none or documents is not none else 'none' }}", "none"),
        ("{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}", "3"),
        ("{{ pad_token }}{{ add_generation_prompt }}", "True"),
        ("{{ messages[1:] | length }}{{ messages[0]['content'].split(',')[0] }}", "2Hi"),
    ],
)  # fmt: skip
def test_what_templates_of_the_field_use(source: str, text: str) -> None:
    assert render(source) == text


def test_strftime_now() -> None:
    assert render("{{ strftime_now('%Y') }}").isdecimal()


def test_variables() -> None:
    source = "{{ enable_thinking }} {{ add_generation_prompt }} {{ documents }}{{ tools }}"
    template = ChatTemplate(source, {})
    assert template.render(MESSAGES, False, variables={"enable_thinking": False}) == (
        "False False NoneNone"
    )
    assert template.mentions("enable_thinking") and not template.mentions("enable")


def test_tools() -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"b": 1, "a": "é"}}}]
    source = "{% for tool in tools %}{{ tool | tojson }}{% endfor %}{% if tools %}!{% endif %}"
    assert ChatTemplate(source, {}).render(MESSAGES, tools=tools) == (
        '{"type": "function", "function": {"name": "f", "parameters": {"b": 1, "a": "é"}}}!'
    )


HOSTILE = {
    "loops": ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "took longer"),
    "power": ("{{ 10 ** (10 ** 10) }}", "took longer"),
    "endless recursion": ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
    "nested source": ("{{ " + "(" * 9999 + ")" * 9999 + " }}", "fails|ended"),
    "huge string": ("{{ 'a' * n }}", "fails|memory|longer"),
    "huge padding": ("{{ '%09999999999d' % 1 }}", "memory|fails"),
    "huge output": (
        "{% for i in range(99999) %}{{ 'a' * 99 }}{{ 'b' * 99 }}{% endfor %}",
        "writes more than 16777216 characters",
    ),
    "huge range": ("{{ range(10 ** 9) | list }}", "Range too big"),
    "class": ("{{ ''.__class__ }}", "reaches outside the sandbox: attribute '__class__' of 'str'"),
    "class by item": ("{{ messages['__class__'] }}", "reaches outside the sandbox"),
    "class by filter": ("{{ messages | attr('__class__') }}", "reaches outside the sandbox"),
    "class by format": ("{{ '{0.__class__}'.format(1) }}", "reaches outside the sandbox"),
    "class by map": ("{{ [1] | map(attribute='__class__') | list }}", "reaches outside the sandbox"),
    "subclasses": ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "reaches outside the sandbox"),
    "globals": ("{{ raise_exception.__globals__ }}", "reaches outside the sandbox"),
    "globals of jinja": ("{{ cycler.__init__.__globals__.os.popen('id').read() }}", "reaches outside the sandbox"),
    "code": ("{{ tojson.__code__ }}{{ strftime_now.__code__ }}", "reaches outside|undefined"),
    "frames": ("{{ (messages | map('upper')).gi_frame }}", "reaches outside the sandbox"),
    "template itself": ("{{ self.__init__ }}", "reaches outside the sandbox"),
    "namespace": ("{% set ns = namespace(__class__=1) %}", "reaches outside the sandbox"),
    "set in a namespace": ("{% set ns = namespace() %}{% set ns.__init__ = 1 %}", "reaches outside the sandbox"),
    "change messages": ("{{ messages.append(1) }}", "reaches outside the sandbox"),
    "config": ("{{ config.secret.key }}", "'config' is undefined"),
    "include": ("{% include '/etc/passwd' %}", "fails"),
    "import": ("{% import 'os' as os %}", "fails"),
    "refusal": ("{{ raise_exception('roles must alternate') }}", "refuses the conversation: roles must"),
    "syntax": ("\n{% if %}", "has a syntax error in line 2"),
    "surrogates": (r"{{ '\ud800' }}", "surrogates not allowed"),
    "a long message": ("{{ raise_exception('x' * 10 ** 5) }}", "x{900}"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_template_is_an_error_and_the_next_render_works(name: str) -> None:
    attack, message = HOSTILE[name]
    attack = attack.replace("'a' * n", "'a' * 10 ** 10")
    source = "{% if messages | length == 3 %}" + attack + "{% else %}fine{% endif %}"
    template = limited(attack if name == "syntax" else source, seconds=0.3)
    begin = time.monotonic()
    with pytest.raises(ValueError, match=f"(?s)^chat template of tiny .*({message})") as caught:
        template.render(MESSAGES)
    assert time.monotonic() - begin < 300  # it does not go on for ever
    assert len(str(caught.value)) < 1100
    if name not in ("syntax", "power", "nested source", "import"):
        assert template.render(MESSAGES[:1]) == "fine"


def test_a_template_sees_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    template = ChatTemplate(HARMLESS, {})
    template.render(MESSAGES)
    if sys.platform == "linux":
        assert b"secret" not in Path(f"/proc/{worker_pid(template)}/environ").read_bytes()


def worker_pid(template: ChatTemplate) -> int:
    return template.workers._idle[0].process.pid


def test_a_worker_that_was_killed_is_replaced() -> None:
    template = ChatTemplate(HARMLESS, {})
    text = template.render(MESSAGES)
    os.kill(worker_pid(template), signal.SIGKILL)
    with pytest.raises(ValueError, match="ended the process that rendered it"):
        template.render(MESSAGES)
    assert template.render(MESSAGES) == text


def request(source: str, seconds: float) -> dict[str, Any]:
    """What a worker is asked."""
    return {"template": source, "variables": {}, "text_chars": 9, "seconds": seconds}


@pytest.mark.skipif(sys.platform == "win32", reason="has no timer of processor time")
def test_a_worker_ends_itself_after_its_processor_time() -> None:
    worker = TemplateWorkers()._start_worker()
    with pytest.raises(TimeoutError):
        worker.ask(request(HOSTILE["loops"][0], 0.01), seconds=120)
    assert worker.process.returncode == -signal.SIGPROF
    worker.stop()


@pytest.mark.skipif(sys.platform == "win32", reason="has no timer of processor time")
def test_time_in_which_a_worker_does_not_run_is_not_its_own() -> None:
    """A busy machine gives a worker little of a processor; here it gets none for longer than the limit."""
    worker = TemplateWorkers()._start_worker()
    worker.process.send_signal(signal.SIGSTOP)
    resume = threading.Timer(0.3, worker.process.send_signal, [signal.SIGCONT])
    resume.start()
    assert worker.ask(request("fine", 0.2), seconds=120)["text"] == "fine"
    worker.stop()


@pytest.mark.skipif(sys.platform == "win32", reason="has no SIGSTOP")
def test_a_worker_that_hangs_is_ended() -> None:
    worker = TemplateWorkers()._start_worker()
    worker.process.send_signal(signal.SIGSTOP)
    with pytest.raises(TimeoutError):
        worker.ask(request("fine", 0.2), seconds=0.2)
    worker.stop()
    assert worker.process.returncode == -signal.SIGKILL


def test_renderings_of_a_conversation_share_its_time() -> None:
    template = ChatTemplate("{% for i in range(30000) %}{% endfor %}fine", {})
    time_left = RenderingTime(0.1)
    assert template.render(MESSAGES, time_left=time_left) == "fine"
    assert 0 < time_left.seconds < 0.1
    with suppress(TemplateTimeoutError):
        for _ in range(100_000):
            template.render(MESSAGES, time_left=time_left)
        pytest.fail("no rendering was refused")


def test_a_worker_that_cannot_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    with pytest.raises(RuntimeError, match=r"false did not start .*chat_template_worker\.py"):
        render(HARMLESS)


def test_an_interrupted_render_does_not_answer_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    template = ChatTemplate(HARMLESS, {})
    template.render(MESSAGES)
    worker = template.workers._idle[0]
    ask = worker.ask

    def interrupted(*args: object) -> None:
        ask(*args)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    monkeypatch.setattr(worker, "ask", interrupted)
    with pytest.raises(KeyboardInterrupt):
        template.render(MESSAGES)
    assert template.render(MESSAGES[:1]) == "[user]Hi, 你好!"


def is_running(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


def test_the_worker_ends_with_its_template() -> None:
    template = ChatTemplate(HARMLESS, {})
    template.render(MESSAGES)
    pid = worker_pid(template)
    del template
    deadline = time.monotonic() + 120
    while is_running(pid):  # the timer of the rendering may hold it for a moment
        assert time.monotonic() < deadline
        gc.collect()
        time.sleep(0.01)


def test_a_slow_rendering_does_not_hold_up_the_next_one() -> None:
    source = "{% if messages[0].role == 'user' %}" + HOSTILE["loops"][0] + "{% endif %}fine"
    template = limited(source, seconds=120.0)
    assert template.render([{"role": "tool", "content": ""}]) == "fine"
    first = worker_pid(template)
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(template.render, MESSAGES)
        while template.workers._idle:
            time.sleep(0.001)
        for _ in range(3):
            assert template.render([{"role": "tool", "content": ""}]) == "fine"
        assert not slow.done()
        os.kill(first, signal.SIGKILL)  # it would go on for the processor time that it may use
        with pytest.raises(ValueError, match="ended the process that rendered it"):
            slow.result()


def test_workers_are_bounded() -> None:
    template = limited("{{ messages[0].content }}", num_workers=2)
    with ThreadPoolExecutor(8) as pool:
        texts = list(
            pool.map(
                lambda i: template.render([{"role": "user", "content": str(i) * 5000}]), range(40)
            )
        )
    assert texts == [str(i) * 5000 for i in range(40)]
    assert 1 <= len(template.workers._idle) <= 2


def test_templates_share_workers() -> None:
    workers = TemplateWorkers()
    for index in range(20):
        template = ChatTemplate(f"{{{{ messages[0].role }}}}{index}", {}, workers=workers)
        assert template.render(MESSAGES) == f"user{index}"
    assert len(workers._idle) == 1


def test_no_time_is_left() -> None:
    with pytest.raises(TemplateTimeoutError, match="took longer"):
        ChatTemplate("", {}).render(MESSAGES, time_left=RenderingTime(0))


def test_long_conversations_fit() -> None:
    content = "long text " * 200_000
    assert (
        ChatTemplate("{{ messages[0].content }}", {}).render([{"role": "user", "content": content}])
        == content
    )


def test_a_template_that_is_too_long() -> None:
    with pytest.raises(
        ValueError, match="chat template of the model has 262145 characters; at most 262144"
    ):
        ChatTemplate(" " * 262145, {})


@pytest.mark.skipif(not Path("/proc/self/limits").exists(), reason="no limits to read")
def test_the_system_limits_a_worker() -> None:
    template = limited("x")
    template.render([])
    [worker] = template.workers._idle
    limits = Path(f"/proc/{worker.process.pid}/limits").read_text()
    found = dict(re.findall(r"(?m)^Max (.*?) {2,}(\S+)", limits))
    names = ("address space", "core file size", "file size")
    assert [found[name] for name in names] == [str(384 << 20), "0", "0"]
