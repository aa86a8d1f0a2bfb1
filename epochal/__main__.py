"""`python -m epochal` is the `epochal` command."""

from epochal.cli.main import main

main()
