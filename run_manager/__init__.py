"""The client: agent, step machine, trainers, exchange and merging."""
