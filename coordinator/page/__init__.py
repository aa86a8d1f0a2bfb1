"""The run's page in a browser: the files that it consists of, and how they are sent."""
