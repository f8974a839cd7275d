"""The integer weight formats: how weights become codes, and which numbers the codes stand for."""
