"""What others wrote, made safe to show: a terminal obeys the characters that this replaces."""


def visible(text: str) -> str:
    """The text on one line, with a Python escape for every character that is not printable."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)
