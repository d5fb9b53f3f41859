"""Starting a job.

    entrance.py    what the console scripts run
    cli.py         the command `lockstitch`
    options.py     what may be said on its command line
    observing.py   the commands that look at running jobs: `ps`, `status`, `waits`, …
    manifest.py    the command `lockstitch manifest`
    kubernetes     what it writes for Kubernetes
    config.py      what a file may say instead
    placing.py     where and how many workers run, as it says
    tuning.py      the variables that the options set in the workers' environment
    pipes.py       reading what processes write, in such a loop
    process_loop.py  starting, following and ending processes of this machine
    job.py         a job: workers that are started, followed, shown and ended
    local.py       a job whose workers stand and fall together
    multi_host.py  a job on several hosts
    elastic.py     a job whose workers come and go
    hosts.py       hosts and their slots, as people write them
    discovery.py   which hosts there are now, asked of a script
    starting.py    starting the workers of an elastic job, wherever they are
    remote.py      starting something on another host
    agent          what is started there, one for each host, to start its workers
    slurm.py       the allocation of Slurm that this is in, and `srun` for its nodes
    outputs.py     what the workers say, also in files
    meeting.py     the file and the port at which the workers meet
    process.py     one worker's process: its environment, its life, its end
    handover.py    the secret that the workers of a job get
    stopping.py    when to stop, and how firmly
    screen.py      what the workers say, each line marked with who said it
    progress.py    the steps of the workers' training, as a line
    memory_kills.py  whether a killed worker had used too much memory
    stderr_tail.py the end of what a worker says on stderr, repeated when it has failed
    first          what Python runs first in a worker

A program needs nothing of this: whatever sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT
(`torchrun`, a batch system, a shell script) starts workers just as well.
"""
