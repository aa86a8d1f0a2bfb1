"""Data providers: one protocol, many sources of samples, and the TCP data server."""
