"""A function on many ranks, from a program that is none itself: `hvd.run(train, np=4)`.

launching   run: starts the launcher, gathers the results
task        what each worker does
job_folder  the folder through which function and results go
elastic     discovery.HostDiscovery, for executors on Ray
"""

from lockstitch.hvd.runner.launching import run

__all__ = ["run"]
