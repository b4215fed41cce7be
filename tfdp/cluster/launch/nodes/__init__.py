"""`tfdp run --nodes`: the launchers of several hosts, which start and end their ranks together.

The launcher on the host of the rendezvous' address serves it
(:mod:`tfdp.cluster.launch.nodes.node_rendezvous`); every launcher, that one too, is a node of it
(:mod:`tfdp.cluster.launch.nodes.node`). What goes between them is in
:mod:`tfdp.cluster.launch.nodes.messages`.
"""
