"""A run's newest checkpoint, which continues text and answers chats: in a terminal, from Python, and over HTTP."""
