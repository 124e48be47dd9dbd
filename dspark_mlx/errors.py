"""Errors that a user can act on: what was found, what was expected, what to do."""


class DSparkError(Exception):
    """Base of every error this package raises on purpose."""


class UserError(DSparkError):
    """Something outside the code is wrong; the command line prints it as one line, exit code 2."""


class CheckpointError(UserError):
    """A checkpoint on disk is missing, damaged, or of a form that is not known."""


class PairError(UserError):
    """A target and a drafter do not fit together."""


class OptionError(UserError, ValueError):
    """An option has a value that it cannot have."""


class SessionError(UserError):
    """A session cannot do this now."""


class UnsupportedError(UserError):
    """The input is recognised and valid, but this version cannot run it."""


class FetchError(UserError):
    """A file that has to come from elsewhere could not be had, or is not the expected one."""
