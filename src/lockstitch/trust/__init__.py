"""What only the workers of one job know, and what they prove by it.

- `secret`: the secret of the job, and the keys that are derived from it
"""

from lockstitch.trust.secret import Secret, find_secret

__all__ = ["Secret", "find_secret"]
