"""Where a run is kept: protocols, the run directory (the default) and memory (for simulations)."""
