"""Memory that is shared between processes, or kept warm for the next time; nothing here knows what
lies in it.

- `mapping`: memory that several processes map, pinned where devices copy from it
- `sizes`: how they are rounded
- `views`: tensors that lie in such memory
- `blocks`: who holds which block: bookkeeping without any memory
- `pools`: memory kept warm for the next one, lent by that bookkeeping
- `arena`: room in memory that is there as a whole, for who takes and gives back many times
- `leases`: how the end of the last use is told, here or to another process
- `segments`, `received_segments`: shared memory that one process lends another, its lending and its
  borrowing end
- `host_copies`: what goes to several processes of the host, copied once for all of them
- `handover`: how one process gives it to the other, as descriptors
- `ring`: short messages from one process to another that looks
- `doorbell`: falling asleep without missing what another process writes, and waking who sleeps
- `mailbox`: whole messages between two processes, over two rings
- `waiting`: how long waits and work usually take, and what follows for the next
"""
