"""The one exception for input a user can put right."""


class UserError(ValueError):
    """Input that cannot work. The message is one sentence that names the remedy.

    The command line prints it without a traceback and exits with status 2.
    """
