"""The hooks of Keras' trainer: `fit`, `evaluate` and `predict`, from all ranks to one share."""
