"""How results travel between clients."""
