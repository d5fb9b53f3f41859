"""Looking inside a running job.

waits.py    what every worker waits for, by one call or a signal
"""

from lockstitch.observe.waits import WaitReports, explain_waits, listen

__all__ = ["WaitReports", "explain_waits", "listen"]
