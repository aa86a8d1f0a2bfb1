"""The run as viewers are sent it: history, members, past versions, trust, and news."""
