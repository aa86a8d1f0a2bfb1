"""Commands of a run's operator that change its course: handlers of `coordinator/machine/handle.py`."""
