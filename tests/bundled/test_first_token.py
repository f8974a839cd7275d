"""What a process imports up to its first token: each module is time before it, whoever imports it."""

import json
import subprocess
import sys

MAX_OWN_MODULES = 206
FIRST_TOKEN = """
import json, sys
from pellucid import LLM, SamplingParams
params = SamplingParams(temperature=0, max_tokens=1)
[output] = LLM(backend="cpu").generate(["Once upon a time"], params, use_tqdm=False)
assert len(output.outputs[0].token_ids) == 1
print(json.dumps(sorted(sys.modules)))
"""
OF_OTHER_CALLS = {
    *("asyncio", "email", "http", "jinja2", "huggingface_hub", "jsonschema", "numpy.random"),
    *("difflib", "threadpoolctl", "torch", "transformers"),
    *("pellucid.async_engine", "pellucid.cli", "pellucid.server", "pellucid.stages"),
    *("pellucid.backends.numpy.backend", "pellucid.backends.torch", "pellucid.benchmark"),
    *("pellucid.engine.inspection", "pellucid.engine.prefix_storage"),
    "pellucid.execution.attention_lens",
    *("pellucid.execution.prefix_store", "pellucid.loading.gguf_file", "pellucid.loading.foreign"),
    *("pellucid.speculation.proposers.draft_model", "pellucid.text.lark_patterns"),
}


def test_the_first_token_waits_for_no_module_of_other_calls() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", FIRST_TOKEN], check=True, capture_output=True, text=True
    )
    loaded = set(json.loads(ran.stdout))
    assert loaded.isdisjoint(OF_OTHER_CALLS)
    own = [name for name in loaded if name.partition(".")[0] == "pellucid"]
    assert len(own) <= MAX_OWN_MODULES, sorted(own)
