"""The start of the process: its command, the part of its environment that matters, its commit.

Secrets are recognized by the names of options, variables and headers, and masked.
"""

import os
import pathlib
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

_PREFIXES = (
    "CUBLAS_",
    "CUDA_",
    "CUDNN_",
    "JAX_",
    "KERAS_",
    "KMP_",
    "MALLOC_",
    "MKL_",
    "NCCL_",
    "NVIDIA_",
    "OMP_",
    "ONEDNN_",
    "OPENBLAS_",
    "TFDP_",
    "TF_",
    "TPU_",
    "XLA_",
)
_NAMES = (
    "LD_PRELOAD",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "OMPI_COMM_WORLD_SIZE",
    "PMI_SIZE",
    "PYTHONHASHSEED",
    "SLURM_CPUS_PER_TASK",
    "SLURM_GPUS_PER_NODE",
    "SLURM_JOB_ID",
    "SLURM_JOB_NODELIST",
    "SLURM_JOB_NUM_NODES",
    "SLURM_NTASKS",
    "SLURM_NTASKS_PER_NODE",
    "SLURM_STEP_NUM_TASKS",
)

# Terraform's variables, which may be secret, and those that TensorFlow sets for itself.
_NOT_OURS = ("TF_CLI_", "TF_VAR_", "TPU_ML_")

# Git starts no daemon and takes no lock: another git may be at work in the repository.
_GIT = ("git", "--no-optional-locks", "-c", "core.fsmonitor=false")

# Hydra's names begin with a sign, and have dots, slashes, `@` and indices.
_ASSIGNED = re.compile(r"""([^\s=?&#:"'(){},]+)=""")
_OPTION = re.compile(r"--?[A-Za-z][\w.-]*")
_HEADER = re.compile(r"([A-Za-z][\w-]*):\s")


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that change what TensorFlow, Keras, tfdp, threads and memory do.

    Variables whose name speaks of a secret are left out, and the texts are as `masked` returns
    them.

    >>> environment({"TF_NUM_INTEROP_THREADS": "8", "HOME": "/root", "KERAS_API_KEY": "x"})
    {'TF_NUM_INTEROP_THREADS': '8'}
    """
    return {
        name: masked(environ[name])
        for name in sorted(environ)
        if (name.startswith(_PREFIXES) or name in _NAMES)
        and not (name.startswith(_NOT_OURS) or is_secret(name))
    }


def command(words: Sequence[str]) -> list[str]:
    """Returns the words of a command line, with the values masked whose names speak of a secret.

    Names are those of options, assignments and headers, and what `masked` finds within a word.

    >>> command(["train.py", "--api-key", "x", "--token=x", "--epochs", "3"])
    ['train.py', '--api-key', '***', '--token=***', '--epochs', '3']
    """
    shown: list[str] = []
    mask_next = False
    for word in words:
        # A secret may begin with one `-`, but two begin an option: the option before was given
        # nothing.
        if mask_next and not word.startswith("--"):
            shown.append(MASK)
            mask_next = False
            continue
        named = _ASSIGNED.match(word) or _HEADER.match(word)
        if named is not None and is_secret(named[1]):
            shown.append(word[: named.end()] + MASK)
        else:
            shown.append(masked(word))
        mask_next = _OPTION.fullmatch(word) is not None and is_secret(word)
    return shown


def commit(script: str | None, directory: str, timeout_seconds: float = 5.0) -> Any:
    """Returns the commit of the repository of the program, or else of the working directory.

    Args:
      script: The program's file; None if there is none.
      directory: The working directory.
      timeout_seconds: How long git may take for all its answers.

    Returns:
      `revision`: 40 or 64 hexadecimal digits. `modified`: whether a file that git knows differs
      from the revision, or git does not know the program's own file; None if git did not answer.
      None in place of both without git, repository or commit.

    >>> commit(None, "/") is None
    True
    """
    deadline = time.monotonic() + timeout_seconds
    program = None if script is None else pathlib.Path(script).resolve()
    if program is not None and not program.is_relative_to(pathlib.Path(sys.prefix).resolve()):
        revision = _said(["rev-parse", "HEAD"], str(program.parent), deadline)
        if revision:
            known = _said(["ls-files", "--", program.name], str(program.parent), deadline)
            modified = True if known == "" else _modified(str(program.parent), deadline)
            return {"revision": revision, "modified": modified}
    revision = _said(["rev-parse", "HEAD"], directory, deadline)
    if not revision:
        return None
    return {"revision": revision, "modified": _modified(directory, deadline)}


def _modified(directory: str, deadline: float) -> bool | None:
    changes = _said(["status", "--porcelain", "--untracked-files=no"], directory, deadline)
    return None if changes is None else bool(changes)


def _said(words: Sequence[str], directory: str, deadline: float) -> str | None:
    """Returns what git prints; None if git fails, is missing, or does not answer in time."""
    try:
        done = subprocess.run(
            [*_GIT, *words],
            cwd=directory,
            env={**os.environ, "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=max(deadline - time.monotonic(), 0.0),
            check=False,
        )
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return done.stdout.decode(errors="replace").strip() if done.returncode == 0 else None


MASK = "***"

_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")

# Only whole parts match: TOKENIZER and TOKENS are no TOKEN. The last two lines are for names
# without a joint.
_SECRET_PART = re.compile(
    r"o?auth|authentication|authorization|bearer|cookies?|creds?|credentials?|jwt|keys?|pass|pwd|"
    r"sig|signature|"
    r"\w*(password|passwd|passphrase|secret)s?|\w*token|"
    r"\w*(access|account|api|auth|private|secret|ssh)keys?",
    re.IGNORECASE,
)

# A value in quotes, escaped or not, which may lack its end; a list or dict, to the end of the text.
_GROUPED = r"""(?P<open>\\*["'])(?:(?!(?P=open))(?:\\.|[^\\]|\\$))*(?P<close>(?P=open)|$)|[\[{].*"""
_NAME = r"(?<![\w.-])[\w.-]+"  # from its beginning: a long word would take quadratic time

_PAIRS = tuple(
    re.compile(pattern, re.DOTALL)
    for pattern in (
        # "name": value, {name: value}
        rf"""(?P<name>(?:(?P<quote>\\*["']){_NAME}(?P=quote)|(?<=[{{,])\s*{_NAME})\s*:\s*)"""
        rf"""(?:{_GROUPED}|[^,}}]+)""",
        # name=value, of a program, a shell or a query
        rf"""(?P<name>{_NAME}=)(?:{_GROUPED}|[^&\s"']+)""",
        # --name value, of a command within a word
        rf"""(?P<name>(?<![\w.-])--?\w[\w.-]*\s+)(?!--)(?:{_GROUPED}|[^\s"']+)""",
        # a header, where the first pattern did not mask it as one of several
        rf"(?P<name>{_NAME}:\s+)(?!\s|\*\*\*)(?:{_GROUPED}|.+)",
    )
)
_BEARER = re.compile(r"""(?<=\bbearer )[^\s"'*]+""", re.IGNORECASE)
_USER_IN_ADDRESS = re.compile(r"""(?<=://)[^/\s"']+@""")


def is_secret(name: str) -> bool:
    """Returns whether a part of the name of an option, variable or header says that it is secret.

    A part ends at `.`, `_`, `-` and the like, at a digit, and where camel case begins a new word.

    >>> [is_secret(name) for name in ("wandb.api_key", "hfToken", "tokenizer", "max-tokens")]
    [True, True, False, False]
    """
    return any(_SECRET_PART.fullmatch(part) for part in _PARTS.findall(name))


def masked(text: str) -> str:
    """Returns `text` with `***` for secret values, and addresses without user and password.

    Names are recognized in queries, JSON, YAML in braces, assignments, options and headers. Where
    the end of a value is not certain, more is masked rather than less.

    >>> masked('https://me:x@host/x?token=abc&epochs=3')
    'https://host/x?token=***&epochs=3'
    >>> masked('{"api_key": "x", "epochs": 3}')
    '{"api_key": "***", "epochs": 3}'
    """
    text = _USER_IN_ADDRESS.sub("", text)
    for pair in _PAIRS:
        text = _without_secrets(pair, text)
    return _BEARER.sub(MASK, text)


def _without_secrets(pair: re.Pattern[str], text: str) -> str:
    shown, position = [], 0
    while found := pair.search(text, position):
        # The text after a name that is not secret may hold names itself.
        end = found.end("name")
        shown.append(text[position:end])
        if is_secret(found["name"]):
            shown.append((found["open"] or "") + MASK + (found["close"] or ""))
            end = found.end()
        position = end
    return "".join(shown) + text[position:]
