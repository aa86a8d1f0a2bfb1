"""Texts, documents and numbers as people are shown them; nothing else of `state` is needed."""
