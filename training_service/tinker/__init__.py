"""The training service for clients of the tinker SDK."""
