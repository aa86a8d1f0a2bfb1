"""Samples over TCP: frames, server, client, and the gate that follows a coordinator."""
