"""One module per group of commands; `epochal/cli/main.py` puts them together."""
