"""One module a command of the command line; each parses, calls and prints."""
