"""The bundled model with a chat template for tools, and a decoder that writes a text given by the test."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pellucid.backends.base import CompiledDecoder, StepLogits, StepWeights
from pellucid.backends.drawing import DrawTable
from pellucid.backends.ops import ForwardBatch, HostArray, KVCache
from pellucid.engine import LLMEngine
from pellucid.inputs.config import EngineConfig
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.loaded_model import LoadedModel
from pellucid.loading.hub import BUNDLED_MODEL
from pellucid.text.tokenizer import Tokenizer
from pellucid.text.tokenizer_files import read_tokenizer_files
from support.bundled import bundled_model
from support.fake_model import FakeBackend

# As Qwen 3 and Hermes write conversations, with the bundled model's control tokens
HERMES_TEMPLATE = """\
{{ bos_token }}{% if tools %}<|system|>Tools: {% for tool in tools %}{{ tool | tojson }}{% endfor %}\
 Call them as <tool_call>{"name": ..., "arguments": ...}</tool_call><|end_of_turn|>{% endif %}\
{% for message in messages %}{{ '<|' + message['role'] + '|>' }}\
{% if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>{% endif %}\
{{ message['content'] or '' }}\
{% for call in message.tool_calls or [] %}<tool_call>
{"name": "{{ call.function.name }}", "arguments":\
 {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|end_of_turn|>{% endfor %}\
{% if add_generation_prompt %}{{ '<|assistant|>' }}{% if enable_thinking is false %}<think></think>{% endif %}\
{% endif %}"""


class ScriptedDecoder(CompiledDecoder):
    """Answers each request with the same tokens, whatever its prompt and its temperature are.

    Args:
        token_ids: the answer.
        vocab_size: V.
    """

    vocab_size = 0
    step_weights = StepWeights(layer_bytes=2 * 160, head_bytes=2 * 128, arithmetic="f32")

    def __init__(self, token_ids: Sequence[int], vocab_size: int) -> None:
        self.token_ids = list(token_ids)
        self.vocab_size = vocab_size
        self._prompt_ends: dict[int, int] = {}  # by the first block of a request

    def forward(self, batch: ForwardBatch, kv_cache: KVCache) -> HostArray:
        logits = np.zeros((len(batch.logits_indices), self.vocab_size), dtype=np.float32)
        owners = np.searchsorted(batch.query_start, batch.logits_indices, side="right") - 1
        for row, index, owner in zip(logits, batch.logits_indices, owners, strict=True):
            block = int(batch.block_tables[0, owner, 0])
            position = int(batch.positions[index])
            is_prefill = batch.query_start[owner + 1] - batch.query_start[owner] > 1
            if is_prefill:
                self._prompt_ends[block] = position
            place = position - self._prompt_ends[block]
            row[self.token_ids[min(place, len(self.token_ids) - 1)]] = 100.0
        return logits

    def scratch_bytes(self, max_num_batched_tokens: int) -> int:
        return max_num_batched_tokens

    def step(
        self, batch: ForwardBatch, kv_cache: KVCache, draws: DrawTable | None = None
    ) -> StepLogits:
        return StepLogits(self.forward(batch, kv_cache))


def scripted_engine(
    text: str, context_length: int = 2048, chat_template: str = HERMES_TEMPLATE, **knobs: Any
) -> LLMEngine:
    """An engine that answers every conversation with a text, in the tokens of the bundled model; greedily, so that what
    a rule allows in its place is the same in each run.

    Args:
        text: the answer.
        context_length: of the model.
        chat_template: of the model.
        knobs: fields of `EngineConfig`.
    """
    model: LoadedModel = bundled_model()
    files = read_tokenizer_files(BUNDLED_MODEL)
    vocab_size = model.config.vocab_size
    tokenizer = Tokenizer(files.hf_tokenizer, vocab_size, files.special_tokens, chat_template)
    (end_of_turn,) = tokenizer.encode("<|end_of_turn|>", add_special_tokens=False)
    script = [*tokenizer.encode(text, add_special_tokens=False), end_of_turn]
    decoder = ScriptedDecoder(script, vocab_size)
    config = replace(model.config, max_position_embeddings=context_length)
    scripted = replace(
        model,
        config=config,
        tokenizer=tokenizer,
        decoder=decoder,
        backend=FakeBackend(),
        default_sampling_params=SamplingParams(temperature=0),
    )
    return LLMEngine(
        EngineConfig(**{"enable_prefix_caching": False, "speculation": "off", **knobs}), scripted
    )
