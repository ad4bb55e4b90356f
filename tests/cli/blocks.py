# SPDX-License-Identifier: Apache-2.0
"""The code blocks of a document, by language, as printed."""
import os
import re

from program import SOURCE


def block(document, language):
    with open(os.path.join(SOURCE, "docs", document)) as stream:
        return re.search(rf"```{language}\n(.*?)```", stream.read(), re.DOTALL).group(1)
