# SPDX-License-Identifier: Apache-2.0
"""The package's plugin for pytest; skipped where there is none."""
import os
import subprocess
import sys

try:
    import pytest  # noqa: F401
except ImportError:
    print("skipped: no pytest here")
    sys.exit(77)

import package  # noqa: F401
from program import SOURCE, expect, path, small

fixture = small()
with open(path("test_moe.py"), "w") as stream:
    stream.write(f"""
import numpy as np
pytest_plugins = ["gaugeblock.pytest_plugin"]
def zeros(layer):
    return np.zeros((layer.tokens, layer.hidden), np.float32)
def unable(layer):
    raise NotImplementedError("needs a GPU")
def test_wrong(gaugeblock_verify):
    gaugeblock_verify(zeros, {fixture!r})
def test_unable(gaugeblock_verify):
    gaugeblock_verify(unable, {fixture!r})
""")
done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", path("test_moe.py"),
                       f"--junitxml={path('junit.xml')}"], capture_output=True, text=True,
                      env={**os.environ, "PYTHONPATH": os.path.join(SOURCE, "python"),
                           "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"})
expect(done.returncode == 1 and "1 failed, 1 skipped" in done.stdout, done.stdout + done.stderr)
expect('name="gaugeblock_verdict" value="FAIL"' in open(path("junit.xml")).read(), "the verdict is a property")
