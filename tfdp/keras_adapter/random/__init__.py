"""Random numbers: each example gets those that one device draws for it."""
