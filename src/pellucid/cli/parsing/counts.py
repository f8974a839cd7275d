"""Options whose values are counts: one count, or a list of different counts."""


def check_count(option: str, count: int, *, least: int) -> None:
    """Raises ValueError, which names the option, if the count is less than `least`."""
    if count < least:
        raise ValueError(f"{option}={count}: must be a whole number of at least {least}")


def parse_counts(option: str, text: str, *, least: int) -> list[int]:
    """The counts of a list such as "1,8,32".

    Raises:
        ValueError: a word is no whole number, is less than `least` or occurs twice.
    """
    counts: list[int] = []
    for word in text.split(","):
        if not word.strip().isdecimal() or int(word) < least or int(word) in counts:
            raise ValueError(
                f"{option}={text!r}: must be different whole numbers of at least {least}, with commas"
                " between them"
            )
        counts.append(int(word))
    return counts
