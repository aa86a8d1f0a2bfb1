"""The coordinator's REST routes, a thin layer over `coordinator/handlers.py`."""
