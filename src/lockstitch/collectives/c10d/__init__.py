"""Reductions over torch.distributed: between hosts, and on accelerators.

Its process groups want every rank to begin the same operations in the same order. So one table, on
rank 0, hears what every rank submits, and tells all of them what to perform next, once every rank
is ready for it. Operations that are ready together are fused.

- `backend`: one rank's end: submits, and waits
- `coordinator`: the table of rank 0, and its orders; no I/O
- `messages`: what ranks and coordinator tell each other; no I/O
- `riding`: small tensors, which ride on these messages; `ahead`: parts that go ahead of orders; no
  I/O
- `coordinator_link`: the connections between them; `link_options`: how these are made
- `tree`: where there are many ranks, who talks to whom; no I/O
- `speaker`: one that speaks to rank 0 for the ranks below it; `tree_coordinator`: the table of rank
  0 then; `matching`, `undecided`, `routes`: what both are made of; no I/O
- `tree_links`, `speaker_link`: the connections of that
- `beginning`: waiting until all are there
- `orders`: performing the orders of rank 0 on one rank, one after the other
- `performing`: what an order comes down to: from requests to results
- `group_operations`: the operations of a process group; `gloo_connections`: how those that wait end
- `exchange`: vectors that the ranks reduce between them, in chunks; no I/O
- `entrance`: where ranks connect to another
- `peer_connections`, `chunk_transfer`: over which connections, and moving the chunks over them
- `hierarchical`: the same, with the ranks of each host going through shared memory
"""
