"""`epochal init`: the files of a new run, from a few answers."""
