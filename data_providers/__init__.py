"""Sources of samples: one protocol, many providers, and the TCP data server."""
