"""The files that people write: state.toml and data.toml, their fields, rules and mistakes."""
