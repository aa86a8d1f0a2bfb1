"""The wire of the `tinker` SDK, so that its own clients train on a training service (extra `tinker`)."""
