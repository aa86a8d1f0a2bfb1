"""The values of which a run consists, each frozen, with the functions that change it."""
