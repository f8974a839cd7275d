"""Splits text into words as patterns of tokenizers say, with Python's `re` and Unicode's own table of characters.

`re` has no classes such as \\p{L}. Here a class is a list of those characters of the texts that belong to it.
"""

import random
import re
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

_WHITE_SPACE = (
    "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029"
    "\u202f\u205f\u3000"
)
_LETTERS = "abdelmrstvyzABDELMRSTVYZſKéÉßσΣцЦאعकกაႠᲐǅʰªºꓐ𐐀𐐨ﬁ"
_MARKS = "\u0301\u0308\u093e\u0900\u0e31\u0488\u20dd\ufe0f"
_DIGITS = "0123456789٣७๔𝟘²½ⅣⅨ〇〡"
_EAST_ASIAN = "一龥龦丁㐀豈⺀⼀々〆ぁんアー・ｱㄅㄯㄱㆎ가힣각가퟿ꥠ"
_SIGNS = "'’\"!#$+-./:;<=>?@[\\]^_`{|}~(),…–。，、।۔،«»¡€©°¬\u00ad‿⁀∀ⓐⒶ〈・！～“”︰﹏、〿"
_OTHERS = "😀👍🏽❤\u200d\u200c\ufeff\x00\x1c\x1f\x7f\ufffd\ue000\U000e0041"
# Of words besides letters, marks and digits: symbols that Unicode counts as letters, and what Oniguruma's \\b adds.
_OTHERS_OF_WORDS = "ⓐⒶ²³¹¼½¾"
_HAN = re.compile("CJK (UNIFIED|COMPATIBILITY) IDEOGRAPH|(CJK|KANGXI) RADICAL|HANGZHOU NUMERAL")
_PIECES = (
    *("the ", " The", "eRE", "DON't", "we'LL", "'s", "'ſ", "I'm", "'Ve", "'RE", "'d", "'ll"),
    *("12", "1234", "123456", "1,234.5", "٣٣٣٣", "1a", "²³", "x2y"),
    *("\r\n", "\n\n", " \n", "  ", "    ", "\t\t", " \t ", "\u3000 ", "\xa0"),
    *("camelCase", "HTTPServer", "snake_case", "//path/", "...\n", "?!/\n", " (a)", '"x"'),
    *("e\u0301", "कि", "ก\u0e31", "你好", "日本語の", "カタカナ", "한국어", "ㄱㄴ", "👍🏽", "❤\ufe0f", "<|x|>"),
)  # fmt: skip


_PER_CATEGORY = 20


@cache
def _alphabet() -> str:
    written = (_WHITE_SPACE, _LETTERS, _MARKS, _DIGITS, _EAST_ASIAN, _SIGNS, _OTHERS, *_PIECES)
    return "".join(dict.fromkeys("".join(written) + _some_of_each_category()))


def _some_of_each_category() -> str:
    """Of Unicode 3.2, which no library is too old for; not those that later versions moved."""
    found: dict[str, list[str]] = {}
    for character in map(chr, range(sys.maxunicode + 1)):
        category = unicodedata.ucd_3_2_0.category(character)
        if category not in ("Cn", "Cs") and category == unicodedata.category(character):
            found.setdefault(category, []).append(character)
    return "".join(
        "".join(characters[:: -(-len(characters) // _PER_CATEGORY)])
        for characters in found.values()
    )


def _is_in(character: str, name: str) -> bool:
    """Whether a character belongs to what a pattern calls \\p{name}, \\s, \\d or \\w."""
    category = unicodedata.category(character)
    match name:
        case "s":
            return character in _WHITE_SPACE
        case "d":
            return category == "Nd"
        case "w":
            in_words = category[0] in "LM" or category in ("Nd", "Nl", "Pc")
            return in_words or character in _OTHERS_OF_WORDS
        case "Han":
            return _HAN.match(unicodedata.name(character, "")) is not None or character in "々〇〻"
    return category.startswith(name)


def _in_re(pattern: str, alphabet: Iterable[str]) -> str:
    """A pattern in the language of `re`: with lists of characters for classes."""

    @cache
    def members(name: str) -> str:
        return "".join(re.escape(each) for each in alphabet if _is_in(each, name))

    word = f"[{members('w')}]"
    border = rf"(?:(?<={word})(?!{word})|(?<!{word})(?={word}))"
    parts, in_class = [], False
    for match in re.finditer(r"\\p\{(\w+)\}|\\([sd])|\\.|\[\^?|\]|.", pattern, re.DOTALL):
        text, name = match[0], match[1] or match[2]
        if name is not None:
            text = members(name) if in_class else f"[{members(name)}]"
        elif text == r"\S":
            text = f"[^{members('s')}]"
        elif text == r"\b":
            text = border
        elif text in ("[", "[^") and in_class:
            text = re.escape(text)
        elif text in ("[", "[^", "]"):
            in_class = text != "]"
        parts.append(text)
    return "".join(parts)


@dataclass(frozen=True)
class ReferenceSplitter:
    """Cuts text by patterns one after the other: matches, and what is between them.

    Args:
        patterns: in the language of `re`.
    """

    patterns: tuple["re.Pattern[str]", ...]

    @classmethod
    def of(cls, patterns: Iterable[str], texts: Iterable[str]) -> "ReferenceSplitter":
        """Of patterns in the language of tokenizers, for some texts."""
        alphabet = sorted(set("".join(texts)))
        return cls(tuple(re.compile(_in_re(pattern, alphabet)) for pattern in patterns))

    def words(self, text: str) -> list[str]:
        words = [text]
        for pattern in self.patterns:
            words = [part for word in words for part in _cut(pattern, word)]
        return words


def _cut(pattern: "re.Pattern[str]", text: str) -> list[str]:
    parts, end = [], 0
    for match in pattern.finditer(text):
        parts += [text[end : match.start()], match[0]]
        end = match.end()
    parts.append(text[end:])
    return [part for part in parts if part]


def texts(count: int, seed: int) -> Sequence[str]:
    """Short texts of the alphabet: characters at random, and pieces in which patterns differ."""
    draw = random.Random(seed)
    found = []
    for _ in range(count):
        pieces = draw.choices(_PIECES, k=draw.randrange(3))
        pieces += ["".join(draw.choices(_alphabet(), k=draw.randrange(1, 4))) for _ in range(2)]
        draw.shuffle(pieces)
        found.append("".join(pieces))
    return found
