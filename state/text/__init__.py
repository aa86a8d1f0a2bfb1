"""Texts of other machines as people are shown them, and documents as tables; nothing else of `state` is needed."""
