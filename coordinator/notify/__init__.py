"""Notifies people about a run (`[notify]`, docs/notifications.md): a signed POST of JSON, or apprise."""
