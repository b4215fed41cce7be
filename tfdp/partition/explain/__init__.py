"""What a finished program exchanges, and why."""
