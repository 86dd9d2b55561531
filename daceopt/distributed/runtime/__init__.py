"""Training over ranks as it runs: what they exchange by which strategy, and who is to blame where it fails."""
