"""The one exception for what a user can put right."""


class UserError(Exception):
    """A user's mistake: bad input, a bad option, a missing file.

    The message is one line that says what is wrong, where, and what to do. The
    command line prints it without a traceback and leaves with `status`.
    """

    status = 2


class UnfitCorpus(UserError):
    """Text that can be read, but on which training would be meaningless."""

    status = 1
