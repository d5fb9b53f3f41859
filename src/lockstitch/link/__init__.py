"""How two processes that share a secret come to trust one connection, whatever they say over it.

greetings.py  what is said at the beginning of a connection, as bytes
handshake.py  the order of the greetings, and the proof in them: both have the secret
authentication.py  the MAC of whatever comes after them
line.py       a handshake, and then authenticated records, over any socket
pulse.py      whether the other ends of lines still live
door.py       who has connected and not yet proved who it is
sockets.py    sockets for those who have no `transport`
addresses.py  which of this host's addresses others can use
node_lists.py lists of nodes as Slurm writes them
ports.py      at which ports this process may listen
codec.py      checked records: dataclasses as JSON, and back
runs.py       texts in a row of which many are the same
machine.py    which machine a process runs on
checking.py   whether a value is what an annotation says

Workers, the ranks of reductions between hosts, and a launcher with its workers all begin so.
Nothing here needs torch, which the launcher does without.
"""
