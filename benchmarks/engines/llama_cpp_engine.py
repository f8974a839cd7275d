"""llama.cpp through llama-cpp-python, by its C API: flash attention, f16 keys and values.

Build it for the machine: CMAKE_ARGS="-DGGML_NATIVE=ON" pip install llama-cpp-python
"""

import ctypes
from collections.abc import Sequence

import llama_cpp
from engines.llama_cpp_batching import serve_requests
from engines.traffic import Served, TrafficRequest
from engines.worker import Stopwatch, Task, random_tokens, serve

GGUF_FILES = {"int4": "model-Q4_0.gguf", "int8": "model-Q8_0.gguf", "bf16": "model-BF16.gguf"}
BATCH, MICRO_BATCH = 2048, 512  # tokens in a call, and computed at a time: llama-bench's


class LlamaCpp:
    """A context for each (batch, length), kept with its sequences at their depth."""

    def __init__(self, task: Task) -> None:
        self._num_threads = task.num_threads
        llama_cpp.llama_backend_init()
        self._quiet = llama_cpp.llama_log_callback(lambda *_: None)
        llama_cpp.llama_log_set(self._quiet, None)
        parameters = llama_cpp.llama_model_default_params()
        parameters.n_gpu_layers = 0
        path = task.weights
        if task.weight_format in GGUF_FILES:
            path /= GGUF_FILES[task.weight_format]
        self._model = llama_cpp.llama_model_load_from_file(str(path).encode(), parameters)
        if not self._model:
            raise OSError(f"{path}: llama.cpp cannot load it")
        self._max_positions = {
            batch: max(test.num_positions for test in task.tests if test.batch == batch)
            for batch in {test.batch for test in task.tests}
        }
        self._contexts: dict[tuple[int, int], object] = {}  # by batch and depth
        # Of each sequence at its depth, where a recurrent state cannot go back to it.
        self._states: dict[tuple[int, int], list[ctypes.Array[ctypes.c_uint8]]] = {}
        self.settings = f"llama-cpp-python {llama_cpp.__version__}, {path.name}, flash attention"

    def prefill(self, num_tokens: int) -> float:
        context = self._rewound_context(batch=1, depth=0)
        tokens = [(token, position, 0) for position, token in enumerate(random_tokens(num_tokens))]
        stopwatch = Stopwatch()
        for start in range(0, num_tokens, BATCH):
            self._decode(context, tokens[start : start + BATCH], last_only=True)
        return stopwatch.seconds

    def decode(self, num_tokens: int, depth: int, batch: int) -> float:
        context = self._rewound_context(batch, depth)
        steps = [
            [(token, depth + step, sequence) for sequence in range(batch)]
            for step, token in enumerate(random_tokens(num_tokens))
        ]
        stopwatch = Stopwatch()
        for step in steps:
            self._decode(context, step)
        return stopwatch.seconds

    def serve(self, requests: Sequence[TrafficRequest]) -> Served:
        context = self._rewound_context(batch=len(requests), depth=0)
        vocabulary = llama_cpp.llama_model_get_vocab(self._model)
        vocab_size = llama_cpp.llama_vocab_n_tokens(vocabulary)
        return serve_requests(context, vocab_size, BATCH, requests)

    def _context(self, batch: int, depth: int) -> object:
        """A context whose sequences hold `depth` tokens."""
        if (batch, depth) not in self._contexts:
            parameters = llama_cpp.llama_context_default_params()
            parameters.n_ctx = batch * (self._max_positions[batch] + 64)
            parameters.n_batch = BATCH
            parameters.n_ubatch = MICRO_BATCH
            parameters.n_threads = parameters.n_threads_batch = self._num_threads
            parameters.n_seq_max = batch
            parameters.kv_unified = False  # the faster one for batches; alone it is the same
            parameters.flash_attn_type = 1
            context = llama_cpp.llama_init_from_model(self._model, parameters)
            if not context:
                raise OSError("llama.cpp cannot make a context")
            self._fill(context, batch, depth)
            self._contexts[batch, depth] = context
            if llama_cpp.llama_model_is_hybrid(self._model) and depth:
                self._states[batch, depth] = [_state(context, each) for each in range(batch)]
        return self._contexts[batch, depth]

    def _fill(self, context: object, batch: int, depth: int) -> None:
        """Gives each sequence the same `depth` tokens: computed for the first, copied to the others."""
        prompt = random_tokens(depth)
        for start in range(0, depth, BATCH):
            chunk = prompt[start : start + BATCH]
            tokens = [(token, start + i, 0) for i, token in enumerate(chunk)]
            self._decode(context, tokens, last_only=True)
        if depth and batch > 1:
            state = _state(context, 0)
            for sequence in range(1, batch):
                _set_state(context, sequence, state)

    def _decode(
        self, context: object, tokens: list[tuple[int, int, int]], last_only: bool = False
    ) -> None:
        """Computes rows of (token, position, sequence); logits of all, or of the last."""
        batch = llama_cpp.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        for row, (token, position, sequence) in enumerate(tokens):
            batch.token[row] = token
            batch.pos[row] = position
            batch.n_seq_id[row] = 1
            batch.seq_id[row][0] = sequence
            batch.logits[row] = not last_only or row == len(tokens) - 1
        status = llama_cpp.llama_decode(context, batch)
        if status != 0:
            raise RuntimeError(f"llama_decode: {status}")
        llama_cpp.llama_synchronize(context)
        llama_cpp.llama_batch_free(batch)

    def _rewound_context(self, batch: int, depth: int) -> object:
        """A context whose sequences hold `depth` tokens, whatever was computed with it."""
        context = self._context(batch, depth)
        memory = llama_cpp.llama_get_memory(context)
        for sequence in range(batch):
            if not llama_cpp.llama_memory_seq_rm(memory, sequence, depth, -1):
                llama_cpp.llama_memory_seq_rm(memory, sequence, -1, -1)
                _set_state(context, sequence, self._states[batch, depth][sequence])
        return context


def _state(context: object, sequence: int) -> ctypes.Array[ctypes.c_uint8]:
    """All that is kept of a sequence."""
    size = llama_cpp.llama_state_seq_get_size(context, sequence)
    state = (ctypes.c_uint8 * size)()
    llama_cpp.llama_state_seq_get_data(context, state, size, sequence)
    return state


def _set_state(context: object, sequence: int, state: ctypes.Array[ctypes.c_uint8]) -> None:
    """Makes a sequence hold what was kept of one."""
    if not llama_cpp.llama_state_seq_set_data(context, state, len(state), sequence):
        raise RuntimeError("llama.cpp cannot read the state that it saved")


if __name__ == "__main__":
    serve(LlamaCpp)
