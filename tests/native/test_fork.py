"""A process forked off one with an engine: it always ends, and its own engine works."""

import os
import subprocess
import sys

import pytest

# Runs in a process of its own: makes an engine on two threads, lets it answer, waits until its second
# thread is parked and forks. SIGALRM ends a child that hangs.
PARENT = """
import os, signal, sys, threading, time
from pellucid import LLM, SamplingParams

def answer(llm):
    return llm.generate(["Once upon a time"], SamplingParams(max_tokens=8, temperature=0))[0].outputs[0].token_ids

llm = LLM(num_threads=2)
expected = answer(llm)
time.sleep(0.05)
busy = threading.Thread(target=lambda: [answer(llm) for _ in range({num_busy_answers})])
busy.start()
child = os.fork()
if child == 0:
    signal.alarm(90)
{in_child}
_, status = os.waitpid(child, 0)
busy.join()
assert answer(llm) == expected, "the parent's engine works on"
print("child", os.waitstatus_to_exitcode(status), flush=True)
"""

EXIT = "sys.exit(7)"
RAISE = "raise KeyError('what the child raises')"
OWN_ENGINE = """
own = LLM(num_threads=2)
assert answer(own) == expected
del llm  # its threads' handles are not the own engine's
assert answer(own) == expected
sys.exit(7)
"""
# Its steps fail, with a sentence that says why, and so do its requests.
PARENTS_ENGINE = """
completion = llm.generate(["Once"], SamplingParams(max_tokens=8))[0].outputs[0]
sys.exit(7 if completion.finish_reason == "error" else 8)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere processes are not forked by default")
@pytest.mark.parametrize(
    ("in_child", "num_busy_answers", "exit_code"),  # another thread is amid so many when it forks
    [
        pytest.param(EXIT, 0, 7, id="exits"),
        pytest.param(RAISE, 0, 1, id="raises"),
        pytest.param(OWN_ENGINE, 0, 7, id="makes its own engine"),
        pytest.param(PARENTS_ENGINE, 0, 7, id="asks the parent's engine"),
        pytest.param(EXIT, 20, 7, id="exits, forked during a step"),
    ],
)
def test_child_ends(in_child: str, num_busy_answers: int, exit_code: int) -> None:
    indented = "\n".join("    " + line for line in in_child.strip().splitlines())
    script = PARENT.format(num_busy_answers=num_busy_answers, in_child=indented)
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=False
    )
    assert run.stdout == f"child {exit_code}\n", run.stderr
    assert run.returncode == 0, run.stderr
    assert ("what the child raises" in run.stderr) == (in_child == RAISE)
    assert ("make the engine after the fork" in run.stderr) == (in_child == PARENTS_ENGINE)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_child_of_a_process_that_packs_weights_ends() -> None:
    script = """
import os, signal, sys
from pellucid.backends.native import WeightPacker
packer = WeightPacker(1 << 20)
child = os.fork()
if child == 0:
    signal.alarm(90)
    try:
        packer.waiting_bytes
    except RuntimeError as error:
        assert "make the engine after the fork" in str(error)
    del packer
    sys.exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=False
    )
    assert run.stdout == "7\n", run.stderr
