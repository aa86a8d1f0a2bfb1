"""A trainer on another machine: the training service's client and wire."""
