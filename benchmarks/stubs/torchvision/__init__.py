"""Stands in for torchvision, of which there is no CPU build everywhere: Streaming imports it and we do not use it."""
