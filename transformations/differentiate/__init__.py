"""The step that derives the backward graph."""
