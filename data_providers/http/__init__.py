"""Token files behind HTTP servers."""
