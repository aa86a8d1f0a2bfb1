"""The store of a run in SQL: one schema and one set of statements, for SQLite and for PostgreSQL."""
