"""Every error asynccfr raises on purpose.

AsyncCFRError
├── InputError                 something the user wrote is wrong; exit code 2
│   ├── SettingsError          a settings file, a key, a value
│   ├── GameError              a game that is unknown, incomplete or unsuitable
│   ├── RunDirectoryError      a run directory that cannot be written or read
│   └── NotEnumerableError     a game whose tree cannot be walked, or is too big to
├── InferenceError             a batch of policy requests failed
│   ├── InferenceClosedError   a request was made to, or pending in, a closed inferer
│   └── NonFiniteOutputError   a network answered NaN or infinity
├── FittingError               a fit met a loss that is not finite
└── Interrupted                the run was asked to stop (one Ctrl-C)
"""


class AsyncCFRError(Exception):
    """Root of the tree: catch this to catch everything asynccfr raises on purpose."""


class InputError(AsyncCFRError):
    """Bad input; the message is one sentence that names it and the remedy."""


class SettingsError(InputError):
    """A settings file, key or value that cannot be used."""


class GameError(InputError):
    """A game that is unknown, lacks what Deep CFR needs, or breaks the Game protocol."""


class RunDirectoryError(InputError):
    """A run directory that cannot be created, written or read."""


class NotEnumerableError(InputError):
    """Exact evaluation was asked of a game whose tree cannot be walked, or is too big to."""


class InferenceError(AsyncCFRError):
    """A batch failed; raised in exactly the waiters of that batch, chained to the cause."""


class InferenceClosedError(InferenceError):
    """The inferer was closed before it could answer."""


class NonFiniteOutputError(InferenceError):
    """A network's output held NaN or infinity, which can never become a policy."""


class FittingError(AsyncCFRError):
    """A fit met a loss that is NaN or infinite; the previous network is untouched."""


class Interrupted(AsyncCFRError):
    """The run was asked to stop and did; what it had learned was written."""
