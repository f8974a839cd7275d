"""The definition of each sampling parameter in plain Python: slow, and independent of the sampler."""

import math

from pellucid.execution.sampler import SamplingRow


def softmax(logits: dict[int, float]) -> dict[int, float]:
    largest = max(logits.values())
    weights = {token_id: math.exp(value - largest) for token_id, value in logits.items()}
    total = math.fsum(weights.values())
    return {token_id: weight / total for token_id, weight in weights.items()}


def final_distribution(logits: list[float], row: SamplingRow) -> dict[int, float]:
    """Probabilities by token id of the tokens that may be sampled; temperature must not be 0."""
    params, prompt, output = row.params, list(row.prompt_token_ids), list(row.output_token_ids)
    left = {token_id: value for token_id, value in enumerate(logits) if value > -math.inf}

    if params.allowed_token_ids is not None:
        left = {token: value for token, value in left.items() if token in params.allowed_token_ids}
    for word in row.bad_words_token_ids:
        text = prompt + output
        for token_id in list(left):
            if (*text, token_id)[-len(word) :] == word:
                del left[token_id]
    if len(output) < params.min_tokens:
        left = {token: value for token, value in left.items() if token not in row.stop_token_ids}

    for token_id, bias in params.logit_bias:
        if token_id in left:
            left[token_id] += bias
    for token_id, value in left.items():
        if token_id in prompt or token_id in output:
            penalty = params.repetition_penalty
            value = value / penalty if value > 0 else value * penalty
        if token_id in output:
            value -= params.presence_penalty
        left[token_id] = value - params.frequency_penalty * output.count(token_id)
    left = {token: value / params.temperature for token, value in left.items()}

    if params.top_k > 0:
        by_logit = sorted(left, key=lambda token: (-left[token], token))
        left = {token: left[token] for token in by_logit[: params.top_k]}
    if params.top_p < 1:
        probabilities = softmax(left)
        order = sorted(left, key=lambda token: (-left[token], token))
        left = {token: left[token] for token in _reach(order, probabilities, params.top_p)}
    if params.min_p > 0:
        probabilities = softmax(left)
        enough = params.min_p * max(probabilities.values())
        left = {token: value for token, value in left.items() if probabilities[token] >= enough}
    if params.typical_p < 1:
        probabilities = softmax(left)
        entropy = -math.fsum(p * math.log(p) for p in probabilities.values())
        order = sorted(
            left, key=lambda token: (abs(-math.log(probabilities[token]) - entropy), token)
        )
        left = {token: left[token] for token in _reach(order, probabilities, params.typical_p)}
    return softmax(left)


def _reach(order: list[int], probabilities: dict[int, float], mass: float) -> list[int]:
    """The shortest beginning of `order` with at least probability `mass`."""
    reached, taken = 0.0, []
    for token_id in order:
        if reached >= mass:
            break
        taken.append(token_id)
        reached += probabilities[token_id]
    return taken
