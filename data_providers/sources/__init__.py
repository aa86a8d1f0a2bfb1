"""Bytes by range: HTTP, object stores, the disk cache, manifests."""
