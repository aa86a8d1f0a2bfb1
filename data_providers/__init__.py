"""Where samples come from: one protocol, many sources, and the TCP data server."""
