"""The formats of token files: where the tokens are, and how many."""
