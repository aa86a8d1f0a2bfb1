"""How a run will go before it starts: its own rules in virtual time, with modelled links (`docs/planning.md`)."""
