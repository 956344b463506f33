"""Runs at the start of every Python process of a weighed command, because its folder is first on PYTHONPATH.

It does two things: the user's own sitecustomize still runs, and weighing waits for torch. A process that never imports
torch pays for this file and nothing else. The work sits in a module whose name no user's file has.
"""

import weighbridge_startup_of_weighed_command  # type: ignore[import-not-found]  # it lies beside this file

weighbridge_startup_of_weighed_command.run()
