"""What moves between replicas: engines, collectives made of them, protocols to ask for them."""
