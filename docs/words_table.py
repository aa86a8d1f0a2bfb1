"""The table of the glossary's words, for docs/concepts.md."""

from epochal.runtime.glossary import GLOSSARY


def body() -> str:
    """Return the words with their meanings, in the order of `runtime/glossary.toml`."""
    rows = (f"| {name} | {' '.join(filter(None, (word.means, word.more)))} |" for name, word in GLOSSARY.items())
    return "\n".join(("| word | meaning |", "|---|---|", *rows))
