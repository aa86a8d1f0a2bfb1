"""What happens to samples between the provider and the trainer: packing, chunking, and one client's mesh of devices."""
