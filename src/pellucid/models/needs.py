"""What models that do not load would need, by the name of their architecture: one of config.json or of a GGUF file."""

import re
from collections.abc import Collection, Mapping

_LATENT = "multi-head latent attention, whose cache holds one compressed vector per token"
_STATE_SPACE = "Mamba's state-space layers"
_PARALLEL = "attention and MLP side by side in each layer"
_UNGATED_NORMS = "an MLP without a gate behind layer norms, with rotated heads"
_ALIBI = "distances added to the scores (ALiBi) instead of rotations"
_NO_TOKENS = "answers that are no tokens: vectors, scores or classes"
_SIGMOID_EXPERTS = "experts chosen by sigmoids beside a shared expert without a gate"
_SHARED_EXPERTS = "a shared expert without a gate beside the chosen ones"

# By a pattern that matches at the beginning of the name in lower case, letters and digits alone.
_NEEDS: Mapping[str, str] = {
    r".*(sequenceclassification|tokenclassification|questionanswering|rewardmodel)": _NO_TOKENS,
    r"\w*bert|.*embedding|t5encoder|gte|lfm2bidir": _NO_TOKENS,
    r"m?t5|bart|mbart|whisper|marian|pegasus|encoderdecoder|\w*seq2seq": "an encoder beside the decoder",
    r"kimilinear": "Kimi's delta attention, which decays each channel, and multi-head latent attention",
    r"glmmoedsa|glmdsa|deepseekv32|deepseek32|deepseekv4": f"{_LATENT}, and an index of the tokens to attend to",
    r"deepseek(v2|v3|2|3|vlv2)|kimi|glm4moelite|minicpm3|longcat|mistral4|axk|youtu|plm": _LATENT,
    r"deepseek": _SHARED_EXPERTS,
    r"glm4vmoe|glm4moe|dots1|solaropen": _SIGMOID_EXPERTS,
    r"llama4": "attention in chunks of positions, and experts that weigh their inputs instead of outputs",
    r"mllama": "attention to the states of a picture in some layers",
    r"minimaxm3": "attention to blocks of tokens that an index chooses",
    r"minimaxm2": "experts chosen by sigmoids, with norms over all heads of q and of k and partial rotations",
    r"minimax": "lightning attention, a linear attention with fixed decays",
    r"phimoe|slimmoe": "a router that compares two sparse choices (SparseMixer), and a head with a bias",
    r"phi4mm|phi4multimodal": "LoRA adapters that pictures and sound switch on",
    r"phi3small": "block-sparse attention",
    r"phi(msft|forcausallm|2|1)?$": _PARALLEL,
    r"gptneox|gptj|codegen|falcon(forcausallm|7b|40b)?$|rwforcausallm|plamo(forcausallm)?$": _PARALLEL,
    r"cohere2?moe|cohere|commandr|aya": f"{_PARALLEL}, and layer norms without biases",
    r"gemma3n": "AltUp and LAuReL, several streams of activations",
    r"recurrentgemma|griffin": "gated linear recurrences (RG-LRU)",
    r"granitemoeshared": _SHARED_EXPERTS,
    r"mamba|falconmamba|falconh1|nemotronh|jamba|bamba|zamba|plamo2|hymba|samba": _STATE_SPACE,
    r"rwkv|arwkv": "RWKV's recurrence",
    r"olmo3?hybrid": "gated delta nets between layers with OLMo's norms",
    r"deci(lm|$)|nemotronnas": "layers of different shapes, some without attention or without an MLP",
    r"nemotron": "squared ReLU, and layer norms that are stored as their distance from 1",
    r"arcee|apertus": "an MLP without a gate, whose activation is a squared or expanded ReLU",
    r"bitnet": "norms inside of attention and of the MLP, before weights of three values",
    r"bailing": "experts chosen in groups, beside shared experts without a gate",
    r"hunyuanmoe|hunyuanv1moe|hunyuanvl|hyv3": _SHARED_EXPERTS,
    r"ernie45moe|ernie45vlmoe": "experts chosen with a bias, beside shared experts without a gate",
    r"dbrx": "clipped q, k and v, and experts in one matrix",
    r"jetmoe": "experts of attention",
    r"grok": "norms on both sides of experts, with soft caps",
    r"arctic": "an MLP beside the experts, each with a residual of its own",
    r"afmoe|exaonemoe|mimov2|mimo2|step3": "experts chosen by sigmoids, in other layers than LFM2's",
    r"openelm": "layers with different numbers of heads",
    r"bloom|mpt|jais|refact": _ALIBI,
    r"(opt|starcoder|gptneo)(forcausallm)?$|gptbigcode|xglm": "learned positions in layers unlike GPT-2's",
    r"starcoder2": _UNGATED_NORMS,
    r"chatglm": "the tensors' layout of GLM-4's first release, of which there are converted ones (-hf)",
    r"internlm|baichuan|qwenlmhead|qwen$|exaone(forcausallm)?$": "tensors under other names, joined in another order",
    r"olmo(forcausallm)?$": "layer norms without weights",
    r"llada|dream|rnd1": "denoising of all positions at once instead of one token after the other",
    r"wavtokenizer|csm|moshi|dac|encodec|snac": "sound instead of tokens",
    r".*(moe|mixtral|sparse)": "a mixture of experts of its own",
}  # fmt: skip


def missing_mechanism(architecture: str) -> str | None:
    """What a model needs that no family has; None where its name is not known.

    Args:
        architecture: of config.json's `architectures`, a `model_type`, or `general.architecture` of a GGUF file.
    """
    name = re.sub(r"[^a-z0-9]", "", architecture.lower())
    return next((need for pattern, need in _NEEDS.items() if re.match(pattern, name)), None)


def why_not(architecture: str, loads: Collection[str]) -> str:
    """The sentence of refusal, the reason first, then the names that load."""
    need = missing_mechanism(architecture)
    reason = "no family has this name" if need is None else f"no family has what it needs: {need}"
    return f"{reason}; what loads: {', '.join(loads)}"
