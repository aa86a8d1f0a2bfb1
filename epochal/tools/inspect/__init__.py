"""Inspects data: files, tokens, and the learnt part of a sample."""
