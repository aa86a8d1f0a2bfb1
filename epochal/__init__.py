"""The front door: the command line and the local testnet. Imports everything, is imported by nothing."""

__version__ = "0.1.0"
