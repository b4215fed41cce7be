"""The benchmark of `tfdp plan`: steps that it predicts, and the same steps measured."""
