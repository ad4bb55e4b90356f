# SPDX-License-Identifier: Apache-2.0
"""The commands `gaugeblock` and `python -m gaugeblock`: the program that judges, with the same arguments."""

import os
import sys
import typing

from gaugeblock import native


def main() -> typing.NoReturn:
    """Becomes the program. Does not return."""
    try:
        program = native.program()
    except FileNotFoundError as error:
        sys.exit(f"gaugeblock: {error}")
    os.execv(program, ["gaugeblock", *sys.argv[1:]])


if __name__ == "__main__":
    main()
