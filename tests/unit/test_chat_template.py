import gc
import os
import shutil
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from pellucid.text.chat_template import DEFAULT_LIMITS, ChatTemplate

MESSAGES = [
    {"role": "user", "content": "Hi, 你好!"},
    {"role": "assistant", "content": "Hello"},
    {"role": "user", "content": "<b>&"},
]
SPECIAL_TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
HARMLESS = "{% for m in messages %}[{{ m.role }}]{{ m['content'] }}{{ eos_token }}{% endfor %}"


def render(source: str, **variables: str | bool) -> str:
    return ChatTemplate(source, SPECIAL_TOKENS, "tiny").render(MESSAGES, **variables)


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
        (
            "{% for m in messages %}{% if loop.index0 == 1 %}{% break %}{% endif %}x{% endfor %}",
            "x",
        ),
        ("{% generation %}{{ messages[1].content }}{% endgeneration %}", "Hello"),
        ("{{ 'set' if tools is not none or documents is not none else 'none' }}", "none"),
        (
            "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
            "3",
        ),
        ("{{ pad_token }}{{ add_generation_prompt }}", "True"),
        ("{{ messages[1:] | length }}{{ messages[0]['content'].split(',')[0] }}", "2Hi"),
    ],
)
def test_what_templates_of_the_field_use(source: str, text: str) -> None:
    assert render(source) == text


def test_strftime_now() -> None:
    assert render("{{ strftime_now('%Y') }}").isdecimal()


def test_variables() -> None:
    source = "{{ enable_thinking }} {{ add_generation_prompt }}"
    template = ChatTemplate(source, {})
    assert template.render(MESSAGES, False, enable_thinking=False) == "False False"
    with pytest.raises(
        ValueError, match=r"'messages2' is no variable of chat templates; allowed: \['date"
    ):
        template.render(MESSAGES, messages2="x")
    with pytest.raises(ValueError, match="enable_thinking must be a bool, got 'no'"):
        template.render(MESSAGES, enable_thinking="no")


HOSTILE = {
    "loops": (
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "took longer",
    ),
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
    "class by map": (
        "{{ [1] | map(attribute='__class__') | list }}",
        "reaches outside the sandbox",
    ),
    "subclasses": ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "reaches outside the sandbox"),
    "globals": ("{{ raise_exception.__globals__ }}", "reaches outside the sandbox"),
    "globals of jinja": (
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "reaches outside the sandbox",
    ),
    "code": ("{{ tojson.__code__ }}{{ strftime_now.__code__ }}", "reaches outside|undefined"),
    "frames": ("{{ (messages | map('upper')).gi_frame }}", "reaches outside the sandbox"),
    "template itself": ("{{ self.__init__ }}", "reaches outside the sandbox"),
    "change messages": ("{{ messages.append(1) }}", "reaches outside the sandbox"),
    "config": ("{{ config.secret.key }}", "'config' is undefined"),
    "include": ("{% include '/etc/passwd' %}", "fails"),
    "import": ("{% import 'os' as os %}", "fails"),
    "refusal": (
        "{{ raise_exception('roles must alternate') }}",
        "refuses the conversation: roles must",
    ),
    "syntax": ("\n{% if %}", "has a syntax error in line 2"),
    "surrogates": (r"{{ '\ud800' }}", "surrogates not allowed"),
    "a long message": ("{{ raise_exception('x' * 10 ** 7) }}", "x{900}"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_template_is_an_error_and_the_next_render_works(name: str) -> None:
    attack, message = HOSTILE[name]
    attack = attack.replace("'a' * n", "'a' * 10 ** 10")
    source = "{% if messages | length == 3 %}" + attack + "{% else %}fine{% endif %}"
    limits = replace(DEFAULT_LIMITS, seconds=1.0)
    template = ChatTemplate(attack if name == "syntax" else source, {}, "tiny", limits)
    begin = time.monotonic()
    with pytest.raises(ValueError, match=f"(?s)^chat template of tiny .*({message})") as caught:
        template.render(MESSAGES)
    assert time.monotonic() - begin < 20
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
    assert template._worker is not None
    return template._worker._process.pid


def test_a_worker_that_was_killed_is_replaced() -> None:
    template = ChatTemplate(HARMLESS, {})
    text = template.render(MESSAGES)
    os.kill(worker_pid(template), signal.SIGKILL)
    with pytest.raises(ValueError, match="ended the process that rendered it"):
        template.render(MESSAGES)
    assert template.render(MESSAGES) == text


@pytest.mark.skipif(sys.platform == "win32", reason="has no RLIMIT_CPU")
def test_a_worker_whose_parent_cannot_end_it_ends_itself() -> None:
    template = ChatTemplate(HOSTILE["loops"][0], {}, limits=replace(DEFAULT_LIMITS, seconds=0.01))
    worker = template._start_worker()
    with pytest.raises(EOFError):
        worker.ask({"messages": []}, seconds=120)
    worker.stop()
    assert worker._process.returncode == -signal.SIGXCPU


def test_a_worker_that_cannot_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    with pytest.raises(RuntimeError, match=r"false did not start .*chat_template_worker\.py"):
        render(HARMLESS)


def test_an_interrupted_render_does_not_answer_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    template = ChatTemplate(HARMLESS, {})
    template.render(MESSAGES)
    assert template._worker is not None
    ask = template._worker.ask

    def interrupted(*args: object) -> None:
        ask(*args)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    monkeypatch.setattr(template._worker, "ask", interrupted)
    with pytest.raises(KeyboardInterrupt):
        template.render(MESSAGES)
    assert template.render(MESSAGES[:1]) == "[user]Hi, 你好!"


def test_the_worker_ends_with_its_template() -> None:
    template = ChatTemplate(HARMLESS, {})
    template.render(MESSAGES)
    pid = worker_pid(template)
    del template
    gc.collect()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_threads_share_a_template() -> None:
    template = ChatTemplate("{{ messages[0].content }}", {})
    contents = [str(i) * 5000 for i in range(40)]
    barrier = threading.Barrier(4)

    def one(content: str) -> str:
        if content in contents[:4]:
            barrier.wait(timeout=30)
        return template.render([{"role": "user", "content": content}])

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(one, contents)) == contents


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


@pytest.mark.parametrize(
    ("messages", "error"),
    [
        ([], "messages must be a non-empty list of messages, got "),
        ("Hi", "messages must be a non-empty list of messages, got 'Hi'"),
        ({"role": "user", "content": "Hi"}, "messages must be a non-empty list"),
        (["Hi"], r"messages\[0\] must have exactly the keys 'role' and 'content', got 'Hi'"),
        ([{"role": "user"}], r"messages\[0\] must have exactly the keys"),
        (
            [*MESSAGES, {"role": "user", "content": "", "name": "x"}],
            r"messages\[3\] must have exactly",
        ),
        (
            [{"role": "user", "content": None}],
            r"messages\[0\]\['content'\] must be a string, got None",
        ),
        ([{"role": "", "content": "Hi"}], r"messages\[0\]\['role'\] must not be empty"),
        (
            [{"role": "user", "content": "\ud800"}],
            r"messages\[0\]\['content'\] is not Unicode text",
        ),
    ],
)
def test_messages_of_another_form(messages: object, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        ChatTemplate(HARMLESS, {}).render(messages)  # type: ignore[arg-type]
