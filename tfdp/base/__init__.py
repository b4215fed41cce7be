"""The ground of all rooms: files, machines, words, hooks, recording, determinism."""
