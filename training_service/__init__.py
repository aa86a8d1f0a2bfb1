"""A machine that trains for light clients."""
