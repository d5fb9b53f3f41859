"""Where a part of the batch runs, if not in the caller.

base             what a slot is, and what goes to it and comes back
kinds            which kind belongs to an entry of `device_ids`
thread, fork     the kinds: a thread here, a forked process
remote           … a worker of lockstitch.rpc
cuda             … a thread with a CUDA stream of its own
slot_thread      for both kinds of threads: the thread, and its tasks
execution        what happens inside a slot of any kind
device_execution … where replica and caller may be on different devices
module_changes   what has changed in the module since the slots were told
own_passes       short passes that the caller runs itself
untracked_leaves tensors whose gradients would be lost in a slot
zero_fill        zeros for parameters that nobody used
recomputing      whether backward passes compute parts of the forward pass again
openmp           threads that would hold the cores for nothing
lifting          tensors lifted out of arguments and outputs
generators       random numbers of the slots
nesting          whether code runs in a slot
failures         exceptions on their way to the caller
answers          each answer for the one who waits for it
replicas         for threads: a module tree on the same parameters
attributes       … what its attributes refer to
forkable         for forks: whether there can be one
child            … what the process does
request_packing  … requests, in few bytes
shared_leaves    … parameters where all processes see them
memory           … tensors in shared memory
messages         … how requests and answers are written
"""
