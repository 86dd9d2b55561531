"""The search for a strategy: what a step consists of and costs, candidates, and how long they take."""
