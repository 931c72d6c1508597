"""The mesh, research-only: opposite nodes of a ring of four reach each other through the neighbours' network cards.

Opposite nodes share no cable. A *marker* on the origin tags the RDMA packets of the queue pairs to the opposite node, a
/32 route sends them to the node between, and a rule in that node's card takes the tag off, names the far port as
receiver and passes the packet on by the other port. No CPU and no kernel sees it. All of this is arithmetic over
cables, addresses and MACs; the numbers and the choice of ways are those of sparkring's `cx7_hairpin_diagonal`
(FujitsuPolycom/sparkring f16b5f4), so that a set-up made with its planner is recognised as the same.
"""
