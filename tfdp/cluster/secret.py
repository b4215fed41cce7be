"""The secret that all ranks of a cluster know, and how a rank shows another that it knows it.

`tfdp run` makes a secret for each run. Elsewhere it is in the environment variable `TFDP_SECRET`,
or in the file that `TFDP_SECRET_FILE` names. It is never sent, written or shown.
"""

import hashlib
import hmac
import json
import os
import pathlib
import secrets
from collections.abc import Mapping
from typing import Any

from tfdp.errors import ClusterError

VARIABLE = "TFDP_SECRET"
FILE_VARIABLE = "TFDP_SECRET_FILE"

# Whoever sees a proof can try secrets at leisure: a word of a dictionary protects nothing.
_LEAST_CHARACTERS = 16

HOW_TO_GIVE_ONE = (
    f"Give all ranks the same secret in `{VARIABLE}`, or in a file that `{FILE_VARIABLE}` names; "
    "`python -c 'import secrets; print(secrets.token_hex(32))'` makes one."
)


def made() -> str:
    """Returns a new secret, of 256 random bits.

    >>> len(made())
    64
    """
    return secrets.token_hex(32)


def in_environment(environ: Mapping[str, str] = os.environ) -> str | None:
    """Returns the secret of this process, without white space around it; None if there is none.

    `TFDP_SECRET` has precedence over `TFDP_SECRET_FILE`.

    Raises:
      ClusterError: The file cannot be read, or the secret is short or empty.

    >>> in_environment({"TFDP_SECRET": "correct horse battery staple"})
    'correct horse battery staple'
    """
    name = VARIABLE if VARIABLE in environ else FILE_VARIABLE
    text = environ.get(name)
    if text is None:
        return None
    if name == FILE_VARIABLE:
        try:
            text = pathlib.Path(text).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise ClusterError(
                f"`{name}` must name a text file that this process can read, but: {error}. Write "
                "the secret there, or unset the variable on all ranks."
            ) from error
    if len(text.strip()) < _LEAST_CHARACTERS:
        raise ClusterError(
            f"`{name}` must hold a secret of at least {_LEAST_CHARACTERS} characters, but holds "
            f"{len(text.strip())}. {HOW_TO_GIVE_ONE}"
        )
    return text.strip()


def proof(secret: str, role: str, nonces: str, says: Mapping[str, Any] | None = None) -> str:
    """Returns a text that only a process which knows `secret` can make: HMAC-SHA256 of the others.

    Args:
      secret: The secret.
      role: The side that shows the proof: nobody can send a side's own proof back to it.
      nonces: A random text of each side: nobody can repeat an earlier proof.
      says: What is said with the proof (JSON): nobody can change it on the way.

    >>> proof("correct horse battery staple", "rank 0", "of one" + "of the other")[:8]
    '62827810'
    """
    said = f"tfdp {role} {nonces} {json.dumps(says, sort_keys=True)}".encode(errors="replace")
    return hmac.new(secret.encode(errors="replace"), said, hashlib.sha256).hexdigest()


def proves(
    shown: object, secret: str, role: str, nonces: str, says: Mapping[str, Any] | None = None
) -> bool:
    """Returns whether `shown`, which came from the network, is `role`'s proof, in constant time.

    >>> proves("nothing", "correct horse battery staple", "rank 0", "of one" + "of the other")
    False
    """
    wanted = proof(secret, role, nonces, says).encode()
    return isinstance(shown, str) and hmac.compare_digest(shown.encode(errors="replace"), wanted)
