"""A run seen from Python: `epochal.connect` and `epochal.run_local`, for scripts and notebooks."""
