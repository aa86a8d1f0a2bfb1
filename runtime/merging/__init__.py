"""Updates made and applied, off the event loop: by clients, and by whoever makes the update for everybody."""
