"""The benchmark of input: how fast it is, beside hand-written tf.data and Keras' own arrays."""
