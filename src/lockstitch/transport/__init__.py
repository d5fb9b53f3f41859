"""Bytes between two workers; nothing here knows what they mean.

    base      the seam: `Transport`, `Listener`, `Connection`, `Poller`
    stream    connections and listeners over sockets, shared by
    unix      … the processes of one user on one machine
    tcp       … and machines
    polling   waiting for many sockets (epoll)
    spin      waiting for one, briefly, without going to sleep
    memory    the twin inside one process, with scripted faults
    forks     forked children let go of their parent's sockets
"""
