"""Checks one model by its headers: whether it opens, what is left out, and what it needs."""

from pellucid.benchmark.estimate import ModelFormats, Workload, estimate_memory
from pellucid.checking.facts import model_facts
from pellucid.checking.report import ModelReport
from pellucid.checking.tokens import read_token_facts
from pellucid.config import EngineConfig
from pellucid.loading.hub_headers import find_headers
from pellucid.loading.open_model import open_stored_model
from pellucid.loading.wanted_tensors import check_matrices_are_there
from pellucid.memory.memory_plan import plan_weights

# A usual request, as in `pellucid plan`.
_PROMPT, _OUTPUT = 512, 128


def check_model(config: EngineConfig, memory_bytes: int | None) -> ModelReport:
    """What can be said of the model that `config` names without reading weights.

    Args:
        memory_bytes: that weights and KV cache may take; None: unknown, so nothing is said about what fits.

    Raises:
        OSError: a file cannot be read, or the hub cannot be reached.
    """
    name = config.model or "the bundled model"
    try:
        with find_headers(config.model, config.revision) as location:
            name = location.name
            stored = open_stored_model(location.path, verifies_checksums=False)
            check_matrices_are_there(stored)
            end_tokens, chat = read_token_facts(stored)
            facts = model_facts(stored)
            formats = ModelFormats(
                config.quantization,
                config.kv_cache_dtype,
                config.block_size,
                # As native kernels keep them.
                plan_weights(stored, None, config.quantization).total,
                memory_utilization=config.memory_utilization,
            )
    except ValueError as error:
        return ModelReport(name, refusal=str(error))
    prompt = min(_PROMPT, facts.context_length - 1)
    work = Workload(prompt, min(_OUTPUT, facts.context_length - prompt))
    numbers = estimate_memory(stored.config, formats, memory_bytes or 0, work)
    return ModelReport(
        name,
        None,
        stored.notes,
        facts,
        end_tokens,
        chat,
        {
            number.name: number
            for number in numbers
            if memory_bytes or "memory" not in number.inputs
        },
        work.prompt + work.output,
    )
