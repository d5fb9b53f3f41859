"""How a command finds the processes of a job and asks them what they do, without any preparation.

    values.py     what is told: processes, workers, calls, reductions, threads, as plain values
    sources.py    who tells it: each part of this process that has something to say
    threads.py    where the threads of this process are
    folder.py     the folder of this user's running processes, and what lies in it
    endpoint.py   a socket of this process, at which it can be asked
    presence.py   this process as others find it: its endpoint, its card
    logs.py       what Lockstitch logs, each record with who this process is
    recorder.py   whether this process counts calls and records spans now
    spans.py      what it records: a ring of spans
    traffic.py    what it counts: calls by function and peer
    ranges.py     ranges of `torch.profiler.record_function`, for the recording
    report.py     the answer: what the sources tell, within a given time
    asking.py     the other end: finds the processes of this user and asks all of them at once
    outlines.py   which processes belong to one job
    far.py        asks those of other hosts, by way of a gateway (`rendezvous.gateway`)
    succession.py which process answers for a host when that of its gateway is gone
    system.py     what the system tells of a process, also of one that does not answer
    control_groups.py  files of the control groups of a process

Nothing here needs torch: whoever looks at a job need not wait for it to be imported. What is made
of the answers (jobs, cycles, tables) is in `lockstitch.observe`.
"""
