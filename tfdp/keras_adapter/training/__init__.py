"""Keras' trainer: `fit`, `evaluate` and `predict`, from all ranks to a share."""
