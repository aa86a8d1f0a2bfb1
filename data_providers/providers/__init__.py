"""The providers: from files on this machine, by ranges of bytes, of rows, of records, and made up."""
