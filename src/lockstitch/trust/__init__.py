"""Who is trusted, and with what.

- `secret`: the secret of the job, and the keys that are derived from it
- `tls`, `certificates`: rules and certificates for TLS between the workers of a job
- `registry`: the functions and classes that peers may name
"""

from lockstitch.trust.registry import Registry
from lockstitch.trust.secret import Secret, find_secret

__all__ = ["Registry", "Secret", "find_secret"]
