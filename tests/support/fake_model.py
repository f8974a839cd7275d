"""A model without weights, whose logits depend on every token that it finds in the KV cache.

What it answers is a pure function of the request's own tokens, read back through the block table.
So a wrong slot, a block shared or freed too early, or a row of another request changes the answer.
"""

import hashlib
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from unittest.mock import patch

import numpy as np

from pellucid.backends.base import CompiledDecoder, StepLogits, StepWeights
from pellucid.backends.drawing import DrawTable
from pellucid.backends.ops import BlockBytes, ForwardBatch, HostArray, IntArray, KVCache
from pellucid.engine import LLMEngine
from pellucid.engine.engine_events import Ceilings
from pellucid.facts.kv_formats import find_kv_format
from pellucid.facts.model_config import ModelConfig, RopeConfig
from pellucid.inputs.config import EngineConfig
from pellucid.inputs.prompts import ChatPrompt
from pellucid.loaded_model import LoadedModel
from pellucid.outputs import CompletionDelta
from pellucid.speculation.proposers.proposer import Proposer
from pellucid.text.responses.format import ResponseFormat
from pellucid.text.responses.template import ResponseTemplate
from support.uniform_model import uniform_model

VOCAB_SIZE = 32
EOS = 0


NOTHING = 255  # where no token was stored


class FakeKVCache:
    """One byte a slot of a block: the token that was stored there.

    Args:
        open_positions: of the format: tokens of a group enter the block together, the last one's step; until then, and
            for the group's own tokens, they are in a slot for the two latest groups.
    """

    def __init__(
        self, num_blocks: int, block_size: int, num_slots: int = 1, open_positions: int = 0
    ) -> None:
        self.layers: tuple[()] = ()
        self.num_bytes = num_blocks * block_size
        self.block_size = self.bytes_per_block = block_size
        self.token_ids = np.full(num_blocks * block_size, NOTHING, dtype=np.uint8)
        self.open = np.full((num_slots, 2, open_positions), NOTHING, dtype=np.uint8)

    def store_and_read(self, batch: ForwardBatch) -> list[IntArray]:
        """Stores a step's tokens. Returns, for each of its rows, the tokens that this row sees."""
        if not self.open.shape[2]:
            self.token_ids[batch.slot_mapping[0]] = batch.token_ids
        seen = []
        owners = np.repeat(np.arange(len(batch.seq_lens)), np.diff(batch.query_start))
        rows = zip(owners.tolist(), batch.positions.tolist(), strict=True)
        for row, (owner, position) in enumerate(rows):
            table, length = batch.block_tables[0, owner], position + 1
            if self.open.shape[2]:
                seen.append(self._store_open(batch, row, table, int(batch.state_slots[owner])))
            else:
                seen.append(self.read(table, length))
        return seen

    def read(self, block_table: IntArray, seq_len: int) -> IntArray:
        num_blocks = -(-seq_len // self.block_size)
        blocks = self.token_ids.reshape(-1, self.block_size)[block_table[:num_blocks]]
        return blocks.reshape(-1)[:seq_len]

    def _store_open(
        self, batch: ForwardBatch, row: int, block_table: IntArray, slot: int
    ) -> IntArray:
        group_size = self.open.shape[2]
        group, place = divmod(int(batch.positions[row]), group_size)
        own = self.open[slot, group % 2]
        own[place] = batch.token_ids[row]
        if place == group_size - 1:
            last = int(batch.slot_mapping[0, row])
            self.token_ids[last - place : last + 1] = own
        before = self.read(block_table, group * group_size)
        return np.concatenate([before, own[: place + 1]])

    def copy_state(self, source_slot: int, target_slot: int) -> None:
        self.open[target_slot] = self.open[source_slot]

    def copy_blocks(self, source_ids: Sequence[int], target_ids: Sequence[int]) -> None:
        assert not set(source_ids[1:]) & set(target_ids[:-1]), "copies depend on each other"
        for source_id, target_id in zip(source_ids, target_ids, strict=True):
            self._block(target_id)[:] = self._block(source_id)

    def read_blocks(self, block_ids: Sequence[int]) -> list[BlockBytes]:
        return [self._block(block_id).copy() for block_id in block_ids]

    def write_blocks(self, block_ids: Sequence[int], contents: Sequence[BlockBytes]) -> None:
        assert len({*block_ids}) == len(block_ids)
        for block_id, data in zip(block_ids, contents, strict=True):
            self._block(block_id)[:] = data

    def _block(self, block_id: int) -> IntArray:
        return self.token_ids[block_id * self.block_size :][: self.block_size]


class FakeDecoder(CompiledDecoder):
    """Args: drafts: whether this is the draft model, which is often right."""

    vocab_size = VOCAB_SIZE
    step_weights = StepWeights(2 * 160, 2 * 128, "f32", expert_bytes=64)

    def __init__(self, drafts: bool = False) -> None:
        self.drafts = drafts
        self.batches: deque[ForwardBatch] = deque(maxlen=100)

    def scratch_bytes(self, max_num_batched_tokens: int) -> int:
        return max_num_batched_tokens

    def step(
        self, batch: ForwardBatch, kv_cache: KVCache, draws: DrawTable | None = None
    ) -> StepLogits:
        return StepLogits(self.forward(batch, kv_cache))

    def forward(self, batch: ForwardBatch, kv_cache: KVCache) -> HostArray:
        assert isinstance(kv_cache, FakeKVCache) and len(batch.token_ids)
        self.batches.append(batch)
        return self.logits(batch, kv_cache.store_and_read(batch))

    def logits(self, batch: ForwardBatch, seen_by_row: Sequence[IntArray]) -> HostArray:
        """The logits [R, V] of a step whose rows see these tokens."""
        logits = np.empty((len(batch.logits_indices), VOCAB_SIZE), dtype=np.float32)
        for row, index in zip(logits, batch.logits_indices.tolist(), strict=True):
            seen = seen_by_row[index]
            # After some tokens a draft model expects what it would after the text before these.
            row[:] = fake_logits(seen[:-1] if self.drafts and seen[-1] % 4 == 1 else seen)
        return logits


def fake_logits(token_ids: Sequence[int] | IntArray) -> HostArray:
    """The fake model's definition: random logits [V] in [-4, 4), a hash of the tokens."""
    digest = hashlib.sha512(np.asarray(token_ids, dtype=np.int64).tobytes()).digest()
    return np.frombuffer(digest, dtype=np.uint16)[:VOCAB_SIZE] / 2.0**13 - 4.0


class FakeWeights:
    """Of a model that has none: no experts are in a file, and one process has all."""

    expert_reads = None
    num_ranks = 1


class FakeBackend:
    name = identity = "fake"
    weights = FakeWeights()
    thread_use = device_facts = None

    def available_memory(self) -> int:
        return 16 << 30

    def kv_shares(self, config: ModelConfig) -> int:
        return 1

    def kv_bytes_per_block(self, config: ModelConfig, block_size: int, dtype: str) -> int:
        return block_size

    def make_kv_cache(
        self,
        config: ModelConfig,
        num_blocks: int,
        block_size: int,
        dtype: str,
        num_state_slots: int = 1,
    ) -> FakeKVCache:
        return FakeKVCache(
            num_blocks, block_size, num_state_slots, find_kv_format(dtype).open_positions
        )

    def open_area_bytes(self, config: ModelConfig, dtype: str) -> int:
        return 0


class FakeTokenizer:
    """One character a token: ids 1 .. 26 are a .. z, the rest are other visible characters."""

    makes_text = True
    has_chat_template = False
    special_token_ids: frozenset[int] = frozenset()
    alphabet = "#abcdefghijklmnopqrstuvwxyz .,!?"

    bos_token_id = None
    vocab_size = VOCAB_SIZE
    # Reasoning stands between ? and !, or ends with yz
    response_format = ResponseFormat(
        "fake",
        ResponseTemplate.compile(
            {
                "start_anchor": "#",
                "fields": {"reasoning": {"open": "?", "close": ["yz", "!"]}, "content": {}},
            }
        ),
        None,
        {},
    )

    def end_of_turn_token_ids(self, prompt: ChatPrompt | None = None) -> tuple[int, ...]:
        return ()

    def answer_ends(self, token_ids: Iterable[int]) -> tuple[int, ...]:
        return tuple(token_ids)

    def encode(
        self, text: str, add_special_tokens: bool = True, max_model_len: int | None = None
    ) -> list[int]:
        """Characters that it lacks are question marks."""
        return [self.alphabet.index(each if each in self.alphabet else "?") for each in text]

    def decode(self, token_ids: list[int], skip_special_tokens: bool = True) -> str:
        return "".join(self.alphabet[token_id] for token_id in token_ids)

    def token_text(self, token_id: int) -> str:
        return self.alphabet[token_id]

    def token_bytes(self, token_id: int) -> bytes:
        return self.token_text(token_id).encode()

    first_token_bytes = token_bytes

    def bad_words_token_ids(self, words: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(self.encode(word)) for word in words)


def fake_model_config(context_length: int = 256, rope: RopeConfig | None = None) -> ModelConfig:
    return uniform_model(
        architecture="Fake",
        vocab_size=VOCAB_SIZE,
        hidden_size=4,
        intermediate_size=8,
        num_heads=1,
        num_kv_heads=1,
        head_dim=4,
        max_position_embeddings=context_length,
        norm_eps=1e-6,
        activation="silu",
        rope=rope,
        scale=1.0,
        windows=(None,),
        eos_token_ids=(EOS,),
    )


@dataclass
class FakeClock:
    """Seconds, moved by hand."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def step_without_moves(engine: LLMEngine) -> list[CompletionDelta]:
    """A step in which blocks cannot be moved."""
    with patch.object(engine.model_runner, "transfer", side_effect=RuntimeError("poisoned")):
        return engine.step()


def fake_engine(
    *,
    context_length: int = 256,
    clock: FakeClock | None = None,
    proposer: Proposer | None = None,
    ceilings: Ceilings | None = None,
    decoder: CompiledDecoder | None = None,
    backend: FakeBackend | None = None,
    **knobs: object,
) -> LLMEngine:
    """Without drafts unless `knobs` say otherwise: many tests count steps."""
    knobs = {"speculation": "off", **knobs}
    config, tokenizer = fake_model_config(context_length), FakeTokenizer()
    draft = LoadedModel(
        "fake", Path("fake"), config, FakeDecoder(drafts=True), tokenizer, FakeBackend()
    )
    model = replace(draft, decoder=decoder or FakeDecoder(), backend=backend or draft.backend)
    return LLMEngine(
        EngineConfig(**knobs),
        model,
        clock or FakeClock(),
        proposer=proposer,
        draft=draft if knobs["speculation"] == "draft" else None,
        ceilings=ceilings,
    )
