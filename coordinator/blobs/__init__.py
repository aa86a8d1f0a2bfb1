"""The way of a result or checkpoint: announced, its bytes held, checked, counted."""
