"""Attacks, accidents and slips, each against real processes or sockets, with small limits so that they take seconds."""
