"""Samples over TCP: the frames, the server, the client, and the gate that follows a coordinator."""
