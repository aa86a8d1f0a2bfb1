"""Telling people about a run by webhooks (`[notify]`, docs/notifications.md)."""
