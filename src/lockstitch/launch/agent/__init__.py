"""One agent per host: a process that the launcher starts on another host, by a remote shell such as
ssh or by `srun`, and that starts, follows and ends the workers there.

    messages     what the two say to each other
    lines        how: lines over two pipes, none of which anybody waits for
    host_agent   the agent
    remote_host  the launcher's end of one host
    remote_hosts all of them

The launcher thus has one client of ssh for each host, however many workers there are on it. Both
ends notice when the other is gone, or falls silent; without its launcher an agent ends the workers.
"""
