"""The commands behind `tfdp`; nothing that trains imports them."""
