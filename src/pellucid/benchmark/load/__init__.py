"""Load on a server: which requests arrive when, what becomes of each, and what that says of the server."""
