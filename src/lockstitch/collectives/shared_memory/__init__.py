"""Reductions between the ranks of one host, through memory that all of them map.

- `backend`: who drives: the threads that submit and wait, one at a time (`token`), and a thread of
  its own for what nobody waits for (`background_driver`)
- `channel`: one process set: logs, table, operations under way; `publishing`: what it tells others
- `operations`: how tensors move: `whole`, `in_place`, or `in_chunks`, chosen by `routes`
- `definitions`: what is known of each name
- `log`: what each rank did, as words in shared memory
- `segment`: the shared memory, and where things are in it (room in it: `memory.arena`)
- `wakeups`: sleeping, waking, and seeing who died
- `introduction`: how the ranks come to share all this
"""
