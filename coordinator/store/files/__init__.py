"""What a run keeps in a folder beside its database: blobs as files, and the locks of a store on one machine."""
