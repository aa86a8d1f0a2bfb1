"""Byte ranges over HTTP."""
