"""Mutation testing of the pure core: do its unit tests notice when a comparison, an operator or a constant changes?

`python -m tests.mutation` draws mutants of `state` and `epochal.coordinator.machine`, runs the unit tests on each,
and lists the ones that no test noticed. `equivalent.toml` names mutants that change nothing that anyone can observe,
and why.
"""
