"""Checks one model by its headers: whether it opens, what is left out, and what it needs."""

from pellucid.benchmark.estimate import Workload, estimate_memory
from pellucid.benchmark.planned_model import plan_stored_model
from pellucid.checking.facts import model_facts
from pellucid.checking.report import ModelReport
from pellucid.checking.tokens import read_token_facts
from pellucid.inputs.config import EngineConfig
from pellucid.loading.hub_headers import find_headers
from pellucid.loading.open_model import open_stored_model
from pellucid.loading.wanted_tensors import check_matrices_are_there

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
            planned = plan_stored_model(name, stored, config)
            plan = None if memory_bytes is None else planned.engine_plan(memory_bytes)
    except ValueError as error:
        return ModelReport(name, refusal=str(error))
    prompt = min(_PROMPT, facts.context_length - 1)
    work = Workload(prompt, min(_OUTPUT, facts.context_length - prompt))
    numbers = estimate_memory(planned, plan, memory_bytes, work)
    return ModelReport(
        name,
        None,
        stored.notes,
        facts,
        end_tokens,
        chat,
        {number.name: number for number in numbers},
        work.prompt + work.output,
    )
