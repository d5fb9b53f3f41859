"""Where a part of the batch runs, if not in the caller.

base            what a slot is, and what goes to it and comes back
kinds           which kind belongs to an entry of `device_ids`
thread, fork    the kinds: a thread here, a forked process
execution       what happens inside a slot of any kind
watch           what has changed in the module since the slots were told
lifting         tensors lifted out of arguments and outputs
generators      random numbers of the slots
nesting         whether code runs in a slot
failures        exceptions on their way to the caller
answers         each answer for the one who waits for it
remote          … a worker of lockstitch.rpc
replicas        for threads: a module tree on the same parameters
child           for forks: what the process does
shared_leaves   … parameters where all processes see them
memory          … tensors in shared memory
packets         … messages
mailbox         … waiting for one
"""
