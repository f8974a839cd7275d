"""What people read: text and tables in a terminal, facts about an answer, plots, JSON."""
