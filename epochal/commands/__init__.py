"""One module per group of commands; `epochal/cli/main.py` lists them."""
