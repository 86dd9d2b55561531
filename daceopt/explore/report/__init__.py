"""The report on a model: its tables, filled from compiled graphs, as text, as HTML and as drawings."""
