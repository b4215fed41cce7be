"""Files: models, backups and what callbacks write are there whole, or not at all."""
