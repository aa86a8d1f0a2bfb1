"""The owner of a run: opens it, persists, publishes and answers, and looks after its members and its store."""
