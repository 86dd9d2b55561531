"""What outlives a process: the content-addressed cache, its locks and seals, and what is known of this machine."""
