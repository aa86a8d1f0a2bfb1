"""Text from other machines, as it may be shown to people: in errors, in logs and on terminals."""


def visible(text: str) -> str:
    """Return text from another machine on one line, with escapes for the characters that a terminal would obey."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)
