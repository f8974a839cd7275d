"""Limits of reasoning in the fields of all protocols: efforts, switches, and budgets in tokens."""

from collections.abc import Mapping
from dataclasses import replace

from pellucid.inputs.sampling_params import SamplingParams
from pellucid.server.errors import refused
from pellucid.text.tokenizer import Tokenizer

# Efforts that are budgets for models whose template does not read an effort. Others set no limit.
EFFORT_BUDGETS = {"none": 0, "minimal": 512, "low": 2048}


def effort_budget(effort: str | None, tokenizer: Tokenizer) -> int | None:
    """The budget that an effort means for a model whose template does not read efforts; None: no limit."""
    knows_reasoning = tokenizer.response_format.knows_reasoning
    if not knows_reasoning or tokenizer.chat_template_mentions("reasoning_effort"):
        return None
    return EFFORT_BUDGETS.get(effort or "")


def switch_budget(wanted: bool | None, tokenizer: Tokenizer) -> int | None:
    """0 if reasoning is switched off and the template has no variable for that; None: no limit."""
    knows_reasoning = tokenizer.response_format.knows_reasoning
    if wanted is not False or tokenizer.chat_template_mentions("enable_thinking"):
        return None
    return 0 if knows_reasoning else None


def given_budget(
    given: Mapping[str, int | None], tokenizer: Tokenizer, warnings: list[str]
) -> int | None:
    """The budget in tokens that a client gives.

    Args:
        given: by the names of the fields, -1 is no limit.
        warnings: gets a line if the model is not known to reason.

    Raises:
        ApiError: a budget is below -1, or two differ.
    """
    found = {name: budget for name, budget in given.items() if budget is not None}
    if not found:
        return None
    for name, budget in found.items():
        if budget < -1:
            raise refused(f"{name}={budget}: must be at least 0, or -1 for no limit", name)
    (name, budget), *others = found.items()
    if any(other != budget for _, other in others):
        raise refused(f"{' and '.join(found)}: differ; give one of them", name)
    if not tokenizer.response_format.knows_reasoning:
        warnings.append(f"{name}: has no effect: it is not known how the model marks its reasoning")
        return None
    return None if budget == -1 else budget


def with_budget(params: SamplingParams, *budgets: int | None) -> SamplingParams:
    """The parameters with the smallest of the given budgets."""
    limits = [budget for budget in budgets if budget is not None]
    return replace(params, thinking_token_budget=min(limits)) if limits else params
