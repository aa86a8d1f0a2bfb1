"""`epochal prepare`: from text to shards of tokens, with a manifest, and the files of a run that trains on them.

`sources` lists what is read, `reading` makes portions of whole documents from it, decompressed and with bounded memory,
`encoding_pool` has processes encode them, and `pipeline` takes the encoded portions in the order of the sources: so the
shards are the same bytes whatever the number of workers. `resume_state` keeps on disk what was done, so that a killed
preparation continues. `publishing` puts everything into place at the end.
"""
