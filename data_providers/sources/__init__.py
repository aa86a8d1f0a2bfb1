"""Files read by byte ranges: over HTTP, from object stores, through the disk cache, checked by manifests."""
