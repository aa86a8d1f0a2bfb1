"""A run in PostgreSQL, which any number of coordinator replicas serve."""
