"""Commands before a run starts."""
