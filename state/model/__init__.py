"""The bytes of a model: its tensors, the replica that all members hold, and the digest of it."""
