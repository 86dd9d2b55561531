"""Programs as researchers write them, by subject: a function each, which makes the networks and says what a step does."""
