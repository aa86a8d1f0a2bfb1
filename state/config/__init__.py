"""What people write, as data: state.toml and data.toml, their fields, rules and mistakes."""
