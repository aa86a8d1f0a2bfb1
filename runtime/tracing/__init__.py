"""Traces of a run's rounds, for OpenTelemetry: names that all parties derive alike, spans, and their export."""
