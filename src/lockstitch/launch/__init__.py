"""Starting a job.

    cli.py       the command `lockstitch`
    local.py     one job on this machine: starts it, follows it, ends it
    meeting.py   the file and the port at which the workers meet
    process.py   one worker's process: its environment, its life, its end
    handover.py  the secret that the workers of a job get
    stopping.py  when to stop, and how firmly
    screen.py    what the workers say, each line marked with who said it

A program needs nothing of this: whatever sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT
(`torchrun`, a batch system, a shell script) starts workers just as well.
"""
