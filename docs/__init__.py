"""The project's documentation, and what builds it."""
