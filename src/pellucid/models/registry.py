"""The registry of families: the family of a checkpoint, by config.json or GGUF metadata."""

from pellucid.facts.json_object import MAX_INTEGER, JsonObject
from pellucid.facts.model_config import ModelConfig
from pellucid.models.ernie import ERNIE
from pellucid.models.exaone4 import EXAONE4
from pellucid.models.family import DecoderClass, Family
from pellucid.models.gemma import GEMMA, GEMMA2, GEMMA3
from pellucid.models.gemma4 import GEMMA4, GEMMA4_UNIFIED
from pellucid.models.gguf_metadata import GgufMetadata
from pellucid.models.glm import GLM, GLM4
from pellucid.models.gpt2 import GPT2
from pellucid.models.gpt_oss import GPT_OSS
from pellucid.models.granite import GRANITE, GRANITE_HYBRID, GRANITE_MOE
from pellucid.models.hunyuan import HUNYUAN
from pellucid.models.lfm2 import LFM2, LFM2_MOE
from pellucid.models.llama import LLAMA
from pellucid.models.mistral import MINISTRAL, MINISTRAL3, MISTRAL
from pellucid.models.mixture import MIXTRAL, OLMOE, QWEN3_MOE
from pellucid.models.needs import why_not
from pellucid.models.olmo import OLMO2, OLMO3
from pellucid.models.phi3 import PHI3
from pellucid.models.qwen import QWEN2, QWEN3
from pellucid.models.qwen2_moe import QWEN2_MOE
from pellucid.models.qwen_next import QWEN3_NEXT, QWEN35, QWEN35_MOE
from pellucid.models.qwen_vl import QWEN2_VL, QWEN3_VL, QWEN3_VL_MOE
from pellucid.models.smollm3 import SMOLLM3
from pellucid.models.stablelm import STABLELM

# Of families with one GGUF architecture a later one is told from an earlier one by its metadata.
FAMILIES: tuple[Family, ...] = (
    LLAMA,
    MISTRAL,
    MINISTRAL,
    MINISTRAL3,
    QWEN2,
    QWEN3,
    QWEN2_MOE,
    QWEN3_MOE,
    QWEN2_VL,
    QWEN3_VL,
    QWEN3_VL_MOE,
    OLMOE,
    MIXTRAL,
    GPT_OSS,
    GEMMA,
    GEMMA2,
    GEMMA3,
    GEMMA4,
    GEMMA4_UNIFIED,
    PHI3,
    GRANITE,
    GRANITE_MOE,
    GRANITE_HYBRID,
    SMOLLM3,
    OLMO2,
    OLMO3,
    EXAONE4,
    ERNIE,
    GLM,
    GLM4,
    HUNYUAN,
    STABLELM,
    LFM2,
    LFM2_MOE,
    QWEN35,
    QWEN35_MOE,
    QWEN3_NEXT,
    GPT2,
)

# Models of text and more, whose `text_config`, or in older files config.json itself, is of their text model.
_MULTIMODAL = (
    "Gemma3ForConditionalGeneration",
    "Gemma4ForConditionalGeneration",
    "Gemma4UnifiedForConditionalGeneration",
    "Idefics3ForConditionalGeneration",
    "Lfm2VlForConditionalGeneration",
    "Mistral3ForConditionalGeneration",
    "Qwen2VLForConditionalGeneration",
    "Qwen2_5_VLForConditionalGeneration",
    "Qwen3VLForConditionalGeneration",
    "Qwen3VLMoeForConditionalGeneration",
    "Qwen3_5ForConditionalGeneration",
    "Qwen3_5MoeForConditionalGeneration",
    "SmolVLMForConditionalGeneration",
)


def find_family(config: JsonObject) -> tuple[Family, JsonObject]:
    """The family of a checkpoint, and the part of its config.json that is about the text model.

    Raises:
        ValueError: the architecture is not supported, or nothing says which one it is.
    """
    architectures = config.optional_strings("architectures")
    if not architectures:
        return _family_of_type(config)
    architecture = architectures[0]
    if architecture in _MULTIMODAL:
        return _family_of_type(config)
    for family in FAMILIES:
        if architecture in family.architectures:
            return family, config
    raise config.error("architectures", why_not(architecture, supported_architectures()))


def _family_of_type(config: JsonObject) -> tuple[Family, JsonObject]:
    """The family by the `model_type` of the text model: of `text_config`, or where the text model was saved alone,
    as some tools do under the name of the whole model, of config.json itself."""
    nested = config.optional_object("text_config")
    text = config if nested is None else _with_shared_keys(config, nested)
    families = {name: family for family in FAMILIES for name in family.model_types}
    if "model_type" not in text.values:
        raise text.error("model_type", f"must say what the text model is: {', '.join(families)}")
    if (model_type := text.string("model_type")) not in families:
        if nested is None and config.values.get("architectures"):
            raise config.error(
                "text_config", f"must say what the text model is: {', '.join(families)}"
            )
        raise text.error("model_type", why_not(model_type, families))
    family = families[model_type]
    return family, text.with_values(architectures=[family.architectures[0]])


def _with_shared_keys(config: JsonObject, text: JsonObject) -> JsonObject:
    """`text_config` with the keys that the whole model may say for it. Each end token that either lists ends an
    answer."""
    shared = {
        key: value
        for key, value in (
            ("bos_token_id", text.values.get("bos_token_id", config.values.get("bos_token_id"))),
            ("tie_word_embeddings", config.values.get("tie_word_embeddings")),
        )
        if value is not None
    }
    if ends := dict.fromkeys([*text.token_ids("eos_token_id"), *config.token_ids("eos_token_id")]):
        shared["eos_token_id"] = list(ends)
    return text.with_values(**shared)


def parse_model_config(config: JsonObject) -> ModelConfig:
    """The facts that config.json alone holds.

    Raises:
        ValueError: its architecture is not supported, or a key has a value that we do not support. The
            message names the file, the key, the value and what is allowed.
    """
    family, text = find_family(config)
    for part in (config, text):
        if not part.boolean("is_causal", True):
            raise part.error(
                "is_causal", "tokens that see what follows them give no text: must be true"
            )
    model = family.read(text)
    if model.context_length > MAX_INTEGER:
        raise ValueError(
            f"{config.path}: max_position_embeddings times the rope factor is a context of"
            f" {model.context_length} tokens: at most {MAX_INTEGER}"
        )
    return model


def gguf_architectures() -> tuple[str, ...]:
    """The values of `general.architecture` that load."""
    return tuple(dict.fromkeys(each.gguf.architecture for each in FAMILIES if each.gguf))


def find_gguf_family(metadata: GgufMetadata) -> Family:
    """The family of a file whose `general.architecture` is one of `gguf_architectures`."""
    return next(
        family
        for family in reversed(FAMILIES)
        if family.gguf is not None
        and family.gguf.architecture == metadata.architecture
        and family.gguf.matches(metadata)
    )


def family_of(architecture: str) -> Family:
    """The family of `ModelConfig.architecture`.

    Raises:
        ValueError: it is not known.
    """
    for family in FAMILIES:
        if architecture in family.architectures:
            return family
    known = ", ".join(supported_architectures())
    raise ValueError(f"architecture={architecture!r}: known are {known}")


def decoder_class(architecture: str) -> DecoderClass:
    """The decoder of `ModelConfig.architecture`. Raises as `family_of` does."""
    return family_of(architecture).decoder


def supported_architectures() -> tuple[str, ...]:
    """The values of `architectures` in config.json that load."""
    of_text = (name for family in FAMILIES for name in family.architectures)
    return tuple(dict.fromkeys((*of_text, *_MULTIMODAL)))
