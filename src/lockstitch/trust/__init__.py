"""Who is trusted, and with what.

- `secret`: the secret of the job, and the keys that are derived from it
- `tls`, `certificates`: rules and certificates for TLS between the workers of a job
- `registry`: the functions and classes that peers may name

The registry knows torch and is imported by itself: the launcher does without.
"""

from lockstitch.trust.secret import Secret, find_secret

__all__ = ["Secret", "find_secret"]
