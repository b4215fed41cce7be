"""The recognition of secrets in names and texts, and their masks."""

import re

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
