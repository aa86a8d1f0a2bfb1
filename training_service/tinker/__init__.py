"""The training service as the tinker SDK's clients see it."""
