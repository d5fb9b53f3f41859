"""How everything grows with the number of workers.

simulation.py   hundreds of workers in one process: messages, bytes, connections, threads
processes.py    real workers, both libraries: time, threads, memory, sockets
rows.py         both as rows of the table
"""

from benchmarks.growth.rows import growth_rows

__all__ = ["growth_rows"]
