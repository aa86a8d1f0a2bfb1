"""Files for all programs: durable writes, the spool, keys, and mapped reads."""
