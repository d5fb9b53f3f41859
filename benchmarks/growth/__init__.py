"""How everything grows with the number of workers.

processes.py    real workers, both libraries: time, threads, memory, sockets
counting.py     real workers: messages, requests to the store, and their bytes
simulation.py   hundreds of workers in one process: the same, steps that wait, connections, threads
work.py         what they do while it is counted
stores.py       what workers ask of the store
rows.py         all as rows of the table
"""

from benchmarks.growth.rows import growth_rows

__all__ = ["growth_rows"]
