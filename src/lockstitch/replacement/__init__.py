"""Lockstitch in the place of the libraries whose interfaces it has, for programs that nobody edits.

    table          what can be replaced, and by what
    swapping       putting ours there, and taking it away again
    finder         an import hook, which does the same for what is imported later
    stale_imports  names that modules have imported before and keep
    startup        what the variable LOCKSTITCH_REPLACE asks for when Python starts

Modules are replaced in `sys.modules`, functions and classes as attributes of their modules.
A name that a module has imported before keeps what it was: that is told in a warning. Nothing here
imports torch: where it is not imported yet, its parts are replaced as soon as it is.
"""

from lockstitch.replacement.swapping import Replacement, active, replace
from lockstitch.replacement.table import VARIABLE, parse_names

__all__ = ["VARIABLE", "Replacement", "active", "parse_names", "replace"]
