"""What `streaming.vision` names at import time."""


class VisionDataset:
    """Never instantiated."""


class CIFAR10:
    """Never instantiated."""
