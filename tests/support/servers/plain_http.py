"""What a client needs for an address without TLS."""

import ssl

PLAIN = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""A TLS context that trusts nobody: httpx reads the trusted certificates for each client, also where it never asks."""
