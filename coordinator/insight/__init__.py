"""The read side of a run: its history, folded from the journal's records."""
