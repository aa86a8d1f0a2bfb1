"""The project's figures, each beside a bare baseline in one run. `make bench` prints them; nothing is a timed test."""
