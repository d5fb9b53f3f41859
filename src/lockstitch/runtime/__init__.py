"""One worker and its calls.

worker.py             Worker: one participant and the services plugged into it; current_worker()
ending.py             what happens to threads that still run when the interpreter ends
agent.py              Agent: what goes out, what comes in, who the peers are; all else plugs in
core.py               what these share: options, clock, threads, memory
outgoing.py           calls of ours
answers.py            what becomes of their answers
packing.py            how values are packed and unpacked
serving.py            who serves which kind of message
running_requests.py   the requests of others that are being served
statistics.py         the agent in numbers, at a moment
peers.py              who the peers are, reaching and losing them
greeting.py           the first words to a peer, before any message
channel.py            our requests to a peer that wait for their answers
stream_channel.py     the connection that we call a peer on
next_reader.py        who reads it next, as tables of values
reading_right.py      who has the right to read it, and how it is passed on
sending.py            frames on their way to that connection, also where the peer is slow
breakages.py          connections that break: is the peer gone, or only the connection?
liveness.py           heartbeats: which peers have fallen silent
reply_side_push.py    messages that a peer pushes to us where its replies go
loopback.py           calls to oneself
pending_handshakes.py who has connected and not yet proved who it is
incoming.py           the connection that a peer calls us on: requests in, replies out
thread_pool.py        the threads: one reads, the others run user functions
arrival.py            what a thread of the pool waits for, and reads for itself
source.py             what the thread that reads reads from: a protocol
call_limit.py         how many users' functions run at once
threads.py            those threads, started and used again
monitor.py            the pool's thread that looks now and then whether another needs help
invocation.py         one request being served
event_loop.py         the thread on which `async def` functions run
hidden_writes.py      tensors written to in such a way that their versions do not tell
own_modes.py          modes of torch of code that stops and goes on later
outcome.py            how something that runs elsewhere will end
inherited.py          timeouts that nested calls inherit; no waits on an event loop
call_spans.py         spans of calls that a program exports, and the context of the caller
spans_of_callers.py   the caller's side of these
carried_modes.py      modes of torch that a call brings along
flow_control.py       how much may be on its way to one peer
duplicate_filter.py   which requests have come already, and which are wanted no more
functions.py          how functions are named on the wire
operators.py          what torch says of arguments that an operator does not take
pending.py            calls that wait for their answer; Future
callbacks.py          what callbacks of a Future raise
timer.py              deadlines and delayed work
switching.py          how long a thread keeps the interpreter while others wait
freed_memory.py       memory that torch frees stays for what it makes next
observing.py          what calls note of themselves while somebody counts or records them
reports.py            what the workers of this process tell somebody who looks on
remote_errors.py      exceptions on their way back to the caller
interceptor.py        the seam for distributed autograd
"""
