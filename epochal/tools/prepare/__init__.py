"""`epochal prepare`: from text to shards of tokens, with a manifest, and the files of a run that trains on them.

`sources` lists what is read, `reading` delivers it decompressed with bounded memory, `cutting` makes portions of whole
documents from it, `pool` has `worker` processes encode them, and `preparing` takes the encoded portions in the order of
the sources: so the shards are the same bytes whatever the number of workers. `done` keeps on disk what was done, so
that a killed preparation continues. `publishing` puts everything into place at the end.
"""
