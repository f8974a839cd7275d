"""Exit statuses."""

EXIT_FAILED = 1  # the request failed on its way
EXIT_USAGE = 2  # what was asked for cannot be served
EXIT_INTERRUPTED = 128 + 2  # what a shell reports for SIGINT
EXIT_BROKEN_PIPE = 128 + 13  # ... and for SIGPIPE

EXIT_BY_FINISH_REASON = {"stop": 0, "length": 0, "error": EXIT_FAILED, "abort": EXIT_INTERRUPTED}
