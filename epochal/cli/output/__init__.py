"""Output of commands: lines, logs, bars."""
