"""`python -m lockstitch` is the command `lockstitch`."""

from __future__ import annotations

from lockstitch.launch.entrance import main

if __name__ == "__main__":
    main()
