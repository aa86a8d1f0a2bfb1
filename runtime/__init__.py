"""Plumbing that every program shares: clock, retries, threads, durable files, HTTP. Imports only `state`."""
