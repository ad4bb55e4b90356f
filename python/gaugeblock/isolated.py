# SPDX-License-Identifier: Apache-2.0
"""What verify(isolate=True) starts: `python -m gaugeblock.isolated RESULT MODULE FUNCTION ARGUMENTS`."""

import sys

from gaugeblock.verify import isolated_main

if __name__ == "__main__":
    isolated_main(sys.argv[1:])
