"""The loss of a run's checkpoints on data: computed on this machine, and recorded in the run's history."""
