"""The owner of a run: opens it, persists, publishes and answers, and watches its members and its store."""
