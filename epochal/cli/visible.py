"""Text from other machines, made safe to print: without characters that control a terminal."""


def visible(text: str) -> str:
    """Return the text on one line, with a Python escape for every character that is not printable."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)
