"""Operations written into the replica's program."""
