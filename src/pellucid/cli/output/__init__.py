"""Output of the commands: text and tables in a terminal, facts about an answer, plots, JSON."""
