"""The hooks of random draws: each example gets the numbers that one device draws for it."""
