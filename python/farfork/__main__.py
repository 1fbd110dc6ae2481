"""``python -m farfork ARGUMENTS`` is ``farfork ARGUMENTS``."""

import os
import sys

from ._binary import binary
from ._errors import Error

try:
    path = binary()
    os.execv(path, [path, *sys.argv[1:]])
except (Error, OSError) as error:
    sys.exit(str(error))
