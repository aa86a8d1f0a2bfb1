"""Token files in every format that people have: where the tokens are, and how many."""
