"""The counts of a preparation, which its manifest holds."""

from dataclasses import dataclass, field

MAX_NAMED = 1000
"""Maximum number of skipped documents and files that the manifest names."""


@dataclass
class PrepareCounts:
    """Counts of a preparation, as its manifest has them. Each document is in exactly one of the first five.

    Attributes:
        train_documents, validation_documents: those that were kept.
        duplicates: exact repeats of an earlier document.
        empty: without text.
        bad: documents and files that were skipped because of what is wrong with them.
        train_tokens, validation_tokens: end tokens included.
        text_bytes: of the documents as UTF-8, repeats included.
        named: the skipped ones in sentences, at most `MAX_NAMED`.
    """

    train_documents: int = 0
    validation_documents: int = 0
    duplicates: int = 0
    empty: int = 0
    bad: int = 0
    train_tokens: int = 0
    validation_tokens: int = 0
    text_bytes: int = 0
    named: list[str] = field(default_factory=list)

    @property
    def documents(self) -> int:
        """The number of documents that were kept."""
        return self.train_documents + self.validation_documents

    @property
    def tokens(self) -> int:
        """The number of tokens that were kept."""
        return self.train_tokens + self.validation_tokens
