"""One module per group of commands; `epochal/main.py` puts them together."""
