"""The command line: entry point, options, output, logs."""
