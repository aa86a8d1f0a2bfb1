"""The values and sentences that people read of a run. Nothing that decides imports from here."""
