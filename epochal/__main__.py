"""`python -m epochal` is the `epochal` command."""

from epochal.main import main

main()
