"""The run directory: journal and blobs in one folder, for one coordinator."""
