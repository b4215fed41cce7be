"""`benchmarks data`: how fast input is, beside hand-written tf.data and Keras' own arrays."""
