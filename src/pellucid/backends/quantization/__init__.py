"""What integer weight formats are: how weights become codes, and what the codes stand for."""
