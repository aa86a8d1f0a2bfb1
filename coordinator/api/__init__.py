"""The coordinator's REST routes, thin over `coordinator/handlers.py`."""
