"""Where a run is kept: one set of protocols, a run directory (the default) and memory (simulations)."""
