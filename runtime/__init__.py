"""Plumbing that all programs share: clocks, retries, threads, durable files, HTTP. Imports only `state`."""
