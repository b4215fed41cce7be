"""`tfdp plan`: what a cluster would take for a step, before it is bought."""
