"""The run directory: journal, blobs, keys and state file in one folder, for one coordinator."""
