"""Live sessions: a page, in a browser or in Jupyter, that walks a session by messages of a closed set."""
