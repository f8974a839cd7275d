"""Completions of the bundled model without a server, for comparison with those of the server."""

from typing import Any

from pellucid.inputs.prompts import Prompt
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.outputs import RequestOutput
from support.bundled import bundled_engine, bundled_model


def offline(prompt: Prompt, **params: Any) -> RequestOutput:
    """The answer of an engine of its own, with the model's own defaults as the server takes them."""
    engine = bundled_engine()
    defaults = bundled_model().default_sampling_params
    fields = {name: getattr(defaults, name) for name in SamplingParams.__dataclass_fields__}
    output = engine.add_request(prompt, SamplingParams(**{**fields, **params}))
    while engine.has_unfinished_requests:
        engine.step()
    return output
