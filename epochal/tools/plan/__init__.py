"""The planner: plays a run before it starts, in virtual time, with modelled links (`docs/planning.md`)."""
