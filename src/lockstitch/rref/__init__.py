"""Remote references: values that live on one worker and can be used from all.

rref.py      RRef, the one class that programs see
proxy.py     rref.rpc_sync().method(...) and its two siblings
service.py   ReferenceService: plugs references into one worker
values.py    the values that live here, present or still to come
lifetime.py  when a value may be freed: the protocol, as tables without I/O
events.py    what the tables are told, and what they answer
outbox.py    control messages that want an answer
deaths.py    who died, and how long that is borne in mind
"""
