"""Reductions between the ranks of one host, through memory that all of them map.

- `backend`: the entrance; it hands each operation to its process set and lets somebody drive
- `driving`: the threads that wait do the work, one at a time (`token`); a thread of its own does it
  for what nobody waits for (`background_driver`)
- `open_sets`: all process sets of a rank; `log_negotiation`: one of them, by the logs of its ranks
  (`log`; `publishing`: what this rank tells the others)
- `shortcut`: small tensors that all ranks submit in one order, by way of `lanes`; `quick`: those
  that come again
- `performing`: the operations that all ranks are ready for
- `operations`: how tensors move: `whole`, `in_place`, or in `rounds` (`in_chunks`, `moving`),
  chosen by `routes`
- `adoption`: memory of the program that comes to live in the segment
- `definitions`: what is known of each name
- `segment`: the shared memory, and where things are in it (room in it: `memory.arena`)
- `wakeups`: sleeping, waking, and seeing who died
- `spreading`: who waits on a processor that others wait on moves to one with fewer of them
- `introduction`: how the ranks come to share all this
"""
