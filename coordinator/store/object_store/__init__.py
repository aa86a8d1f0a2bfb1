"""A run's blobs in a folder of a bucket: Amazon S3 or a compatible server, Google Cloud Storage, Azure."""
