"""Built programs: found in the cache or made, and the records kept with them."""
