"""`lockstitch doctor`: what is here, what is in force, and what is wrong with it.

    findings     what was found: good, worth knowing, or wrong, and what to do
    libraries    torch, asked in a process of its own; other libraries, launchers, engines
    surroundings address, secret, limits, memory, clock, variables
    report       all of it, for people

Each check is a function of what it looks at, so that a test can show it a machine that is not here.
"""
