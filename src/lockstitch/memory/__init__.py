"""Memory that is shared between processes, or kept warm for the next time; nothing here knows what
lies in it.

- `segments`, `leases`: shared memory that one process lends another, its lending and its borrowing
  end, made of
  - `mapping`: memory that several processes map, pinned where devices copy from it
  - `handover`: how one process gives it to the other, as descriptors
  - `tables`: who has which of it
  - `reserve`: descriptors kept back for what is given
- `warm`: memory kept warm for what arrives in streams
- `pools`, `blocks`: what both lend by, and its bookkeeping
- `ring`: short messages from one process to another that looks
- `waiting`: how long waits and work usually take, and what follows for the next
"""
