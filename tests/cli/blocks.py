# SPDX-License-Identifier: Apache-2.0
"""The code blocks of a document, by language, as printed."""
import os
import re

from program import SOURCE


def block(document, language, number=0):
    with open(os.path.join(SOURCE, "docs", document)) as stream:
        return re.findall(rf"```{language}\n(.*?)```", stream.read(), re.DOTALL)[number]
