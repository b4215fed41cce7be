"""Finished programs of replicas: registered with TensorFlow, compiled, instrumented."""
