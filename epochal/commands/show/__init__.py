"""Commands that show a run or take something out of it."""
