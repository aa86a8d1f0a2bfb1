"""The REST service that owns the run: the pure machine, the service around it, its store and its routes."""
