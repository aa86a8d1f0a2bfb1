"""Where the run is kept: one protocol, a run directory (the default) and memory (simulations)."""
