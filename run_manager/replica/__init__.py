"""The client's replica: kept, merged, rebuilt, published as a checkpoint."""
