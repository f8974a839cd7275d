"""How byte-level BPE splits text into words, by llama.cpp's names (`tokenizer.ggml.pre`).

The names are those of src/llama-vocab.cpp. The patterns are those of the models' own tokenizer.json where it is
known; llama.cpp writes some in other words, for a library that has no case and fewer categories.
"""

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace


class Splitting(Struct, frozen=True):
    """How the pre-tokenizer with one of llama.cpp's names splits text.

    Args:
        patterns: regular expressions of Oniguruma; each cuts what the one before left.
        ignore_merges: a word that is a token is taken whole.
        adds_bos: unless the file says otherwise.
        composes: whether text is brought into Unicode's form NFC first.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    adds_bos: bool = False
    composes: bool = False


# -- parts of patterns -----------------------------------------------------------------------------

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_LAST_SPACES = r"\s+(?!\S)|\s+"
_SPACES = rf"\s*[\r\n]+|{_LAST_SPACES}"


def _words(*alternatives: str) -> str:
    return "|".join(alternatives)


# -- GPT-2 and what cuts digits or signs before it -------------------------------------------------

_WORDS_GPT2 = _words(
    "'s|'t|'re|'ve|'m|'ll|'d", r" ?\p{L}+", r" ?\p{N}+", r" ?[^\s\p{L}\p{N}]+", _LAST_SPACES
)
_GPT2 = Splitting((_WORDS_GPT2,))
_DIGITS = Splitting((r"\p{N}", _WORDS_GPT2))
_FALCON = Splitting((r"[\p{P}\$\+<=>\^~\|`]+", _WORDS_GPT2, "[0-9][0-9][0-9]"))
_DEFAULT = Splitting((r"[\p{P}\$\+<=>\^~\|]+", _WORDS_GPT2, r"\p{N}+", "[0-9][0-9][0-9]"))
_CHAMELEON = Splitting(
    (
        "<sentinel:[0-9]+>",
        "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
        r"([\t\n]|    |  )",
        r"\p{N}",
        r"[\p{P}!-/:-@\[-`{-~]",
        _WORDS_GPT2,
    ),
    adds_bos=True,
)
_WORDS_BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"

# -- Llama 3, Qwen 2 and their kin -----------------------------------------------------------------

_WORDS_LLAMA3 = _words(_CONTRACTIONS, _LETTERS, r"\p{N}{1,3}", _SIGNS, _SPACES)
_WORDS_QWEN2 = _words(_CONTRACTIONS, _LETTERS, r"\p{N}", _SIGNS, _SPACES)
_CL100K = Splitting((_WORDS_LLAMA3,))
_LLAMA3 = replace(_CL100K, ignore_merges=True, adds_bos=True)
_PLAIN_QWEN2 = Splitting((_WORDS_QWEN2,))
_QWEN2 = replace(_PLAIN_QWEN2, composes=True)
_QWEN35 = Splitting(
    (
        _words(
            _CONTRACTIONS,
            r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+",
            r"\p{N}",
            r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*",
            _SPACES,
        ),
    ),
    composes=True,
)
_JAIS2 = Splitting(
    (
        _words(
            _CONTRACTIONS,
            _LETTERS,
            r"\p{N}{1,3}",
            _SIGNS,
            r"\s*[\r\n]+",
            *(rf"\s{{{length}}}(?!\S)" for length in (512, 256, 128, 64, 32, 16, 8, 4)),
            r"\s{1,2}(?!\S)|\s{1}",
        ),
    )
)
_MINICPM5 = Splitting(
    (r"\p{N}{1,3}", _words(_CONTRACTIONS, _LETTERS, r"\p{N}+", _SIGNS, _SPACES)),
    ignore_merges=True,
)
_SEED_CODER = Splitting(
    (_words(_CONTRACTIONS, _LETTERS, r"\p{N}{1}", r" ?[^\s\p{L}\p{N}\r\n]+", _SPACES),)
)
_BAILING = Splitting(
    (_words(r"'(?i:[sdmt]|ll|ve|re)", _LETTERS, r"\p{N}", _SIGNS, rf"\s*[\r\n]|{_LAST_SPACES}"),)
)
_LAGUNA = Splitting((r"[^\n]+|[\n]+", _WORDS_QWEN2))
_UFAKZEKA = Splitting((_words(_LETTERS, r"\p{N}", _SIGNS, _SPACES),))
_EXAONE_MOE = Splitting(
    (
        _words(
            _CONTRACTIONS,
            r"[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+",
            r"\p{N}",
            r" ?[^\s\p{L}\p{N}]+[\r\n/]?",
            rf"\s*[\r\n]|{_LAST_SPACES}",
        ),
    )
)

# -- words that begin with capitals and continue in small letters ----------------------------------


def _cased_words(not_in: str = "", ending: str = "") -> str:
    """Words of letters and marks with at most one change from capitals to small letters.

    Args:
        not_in: an intersection that takes letters out of the classes.
        ending: what may follow the letters.
    """
    upper = rf"[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}{not_in}]"
    lower = rf"[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}{not_in}]"
    before = r"[^\r\n\p{L}\p{N}]?"
    return _words(f"{before}{upper}*{lower}+{ending}", f"{before}{upper}+{lower}*{ending}")


_SIGNS_AND_SLASHES = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_WORDS_GPT4O = _words(
    _cased_words(ending=f"{_CONTRACTIONS}?"), r"\p{N}{1,3}", _SIGNS_AND_SLASHES, _SPACES
)
_GPT4O = Splitting((_WORDS_GPT4O,))
_TEKKEN = Splitting(
    (_words(_cased_words(), r"\p{N}", _SIGNS_AND_SLASHES, _SPACES),),
    ignore_merges=True,
    adds_bos=True,
)
_YOUTU = Splitting(
    (
        "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥\u3040-\u309f\u30a0-\u30ff]+",
        _words(_cased_words(ending=f"{_CONTRACTIONS}?"), r"\p{N}", _SIGNS_AND_SLASHES, _SPACES),
    ),
    ignore_merges=True,
)
_KIMI_K2 = Splitting(
    (
        _words(
            r"[\p{Han}]+",
            _cased_words(r"&&[^\p{Han}]", f"{_CONTRACTIONS}?"),
            r"\p{N}{1,3}",
            _SIGNS,
            _SPACES,
        ),
    )
)
# From the end of a number groups of three digits. The pattern of the models, \d{1,3}(?=(?:\d{3})*\b), takes time
# with the square of the digits: here a number is cut off first, then its first one or two digits; the
# last pattern takes three at a time.
_TINY_AYA = Splitting((r"(?<!\d)\d++\b", r"\A\d{1,2}(?=(?:\d{3})+\z)", _WORDS_GPT4O))

# -- DeepSeek and its kin --------------------------------------------------------------------------

_ASCII_SIGN_AND_WORD = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"
_LETTERS_AND_MARKS = r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
_CHINESE_AND_KANA = "[一-龥\u3040-\u309f\u30a0-\u30ff]+"
_WORDS_DEEPSEEK3 = _words(
    _ASCII_SIGN_AND_WORD, _LETTERS_AND_MARKS, r" ?[\p{P}\p{S}]+[\r\n]*", _SPACES
)
_DEEPSEEK3 = Splitting((r"\p{N}{1,3}", _CHINESE_AND_KANA, _WORDS_DEEPSEEK3))
_SPARK25 = Splitting(
    (
        r"\p{N}{1,3}",
        _CHINESE_AND_KANA,
        _words(
            _ASCII_SIGN_AND_WORD,
            _LETTERS_AND_MARKS,
            r" ?[\p{P}\p{S}]+",
            rf"[\r\n]|{_LAST_SPACES}",
        ),
        r"\p{N}",
    )
)
_AFMOE = Splitting(
    (
        # A number is cut off, then its first one or two digits, then three at a time from there.
        r"\p{N}+",
        r"\A\p{N}{1,2}(?=(?:\p{N}{3})+\z)",
        r"\p{N}{3}",
        (
            "[\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf"
            "\u0e40-\u0e7f\u0ec0-\u0eff\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af"
            "\u1100-\u11ff]+"
        ),
        _WORDS_DEEPSEEK3,
    )
)
# Letters with a case as Unicode 11 knew them, but for some blocks. llama.cpp has other ends of three ranges of
# Greek, those that NFC makes of them, which go backwards.
_CASED_LETTERS = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373"
    "\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481"
    "\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b"
    "\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b"
    "\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb"
    "\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128"
    "\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4"
    "\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf"
    "\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"
    "\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
_CHINESE_TO_HANGUL = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_DEEPSEEK_LLM = Splitting(
    (
        "[\r\n]",
        rf"\s?[{_CASED_LETTERS}]+",
        "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
        r"\s+$",
        _CHINESE_TO_HANGUL,
        r"\p{N}+",
    )
)
_DEEPSEEK_CODER = Splitting(("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CHINESE_TO_HANGUL, r"\p{N}"))

# -- words that hold spaces ------------------------------------------------------------------------

# The second one matches no character: it cuts before groups of three digits. "++" takes half the time of "+".
_SUPERBPE = Splitting((r"\p{N}+", r"(?=(?:\d{3})++(?!\d))"))


def _named(splitting: Splitting, *names: str) -> Mapping[str, Splitting]:
    return dict.fromkeys(names, splitting)


SPLITTINGS: Mapping[str, Splitting] = {
    **_named(_GPT2, "gpt-2", "phi-2", "jais", "exaone4", "trillion"),
    **_named(_GPT2, "granite-docling", "gigachat", "a.x-4.0", "mellum", "modern-bert"),
    **_named(_GPT2, "jina-es", "jina-de", "jina-v2-es", "jina-v2-de", "jina-v1-en"),
    **_named(_GPT2, "jina-v2-code", "roberta-bpe"),
    **_named(replace(_GPT2, composes=True), "olmo", "mpt"),  # both have GPT-NeoX's tokenizer
    **_named(_DIGITS, "smollm", "starcoder", "refact", "command-r", "codeshell", "exaone"),
    **_named(_DIGITS, "minerva-7b", "mellum2"),
    **_named(_FALCON, "falcon"),
    **_named(_DEFAULT, "default"),
    **_named(_CHAMELEON, "chameleon"),
    **_named(Splitting((_WORDS_BLOOM,)), "bloom", "poro-chat", "gpt3-finnish"),
    **_named(Splitting((_WORDS_BLOOM, r"\p{N}")), "viking"),
    **_named(_LLAMA3, "llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral"),
    **_named(_LLAMA3, "midm-2.0", "lfm2", "jina-v5-nano"),
    **_named(_CL100K, "glm4", "chatglm-bpe", "dbrx", "smaug-bpe"),
    **_named(_QWEN2, "qwen2"),
    **_named(_PLAIN_QWEN2, "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez", "stablelm2"),
    **_named(_PLAIN_QWEN2, "hunyuan", "solar-open", "grok-2"),
    **_named(_QWEN35, "qwen35"),
    **_named(_JAIS2, "jais-2"),
    **_named(_MINICPM5, "minicpm5"),
    **_named(_SEED_CODER, "seed-coder"),
    **_named(_BAILING, "bailingmoe", "bailingmoe2", "llada-moe"),
    **_named(_LAGUNA, "laguna"),
    **_named(_UFAKZEKA, "ufakzeka"),
    **_named(_EXAONE_MOE, "exaone-moe"),
    **_named(_GPT4O, "gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"),
    **_named(replace(_GPT4O, ignore_merges=True), "granite-embed-multi-97m"),
    **_named(_TEKKEN, "tekken"),
    **_named(_YOUTU, "youtu"),
    **_named(_KIMI_K2, "kimi-k2"),
    **_named(_TINY_AYA, "tiny_aya", "cohere2moe"),
    **_named(_DEEPSEEK3, "deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"),
    **_named(_SPARK25, "spark2_5"),
    **_named(_AFMOE, "afmoe"),
    **_named(_DEEPSEEK_LLM, "deepseek-llm"),
    **_named(_DEEPSEEK_CODER, "deepseek-coder"),
    **_named(_SUPERBPE, "superbpe"),
}
