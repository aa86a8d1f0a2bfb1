"""Inspects data: lengths of documents, frequencies of tokens, the learnt part of a sample."""
