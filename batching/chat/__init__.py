"""Conversations as training samples: records, templates, labels."""
