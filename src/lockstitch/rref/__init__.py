"""Remote references: values that live on one worker and can be used from all.

rref.py       RRef, the one class that programs see
proxy.py      rref.rpc_sync().method(...) and its two siblings
backward.py   rref.backward(), and what it asks of distributed autograd
creation.py   what becomes of one rpc.remote
home.py       what an RRef needs of its worker
service.py    ReferenceService: plugs references into one worker
ledger.py     the two tables of a worker behind one lock, and what follows from them
serving.py    what the owner does for others: makes values, sends copies
values.py     a value that lives here, present or still to come
user_fork.py  what is known of a value that lives elsewhere
finalizer_queue.py  where finalizers leave word, and the thread that reads it
lifetime/     when a value may be freed: the protocol, as two tables without I/O
events.py     what the tables are told, and what they answer
outbox.py     control messages that want an answer
dead_workers.py     who died, and how long that is borne in mind
"""
