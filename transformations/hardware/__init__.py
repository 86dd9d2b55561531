"""Hardware transformations: memory regions and the last specialisation before code generation."""
