# SPDX-License-Identifier: Apache-2.0
"""The workflow files of docs/gates.md: their gaugeblock commands run as printed, and linters find nothing in them. Unless
ALL the longest problems of the suite are the one of a token."""
import os
import re
import shlex
import shutil
import subprocess

from program import ALL, FAULTS, SOURCE, expect, path, run

with open(os.path.join(SOURCE, "docs/gates.md")) as stream:
    workflows = re.findall(r"```yaml\n(.*?)```", stream.read(), re.DOTALL)
expect(len(workflows) == 2, "one for GitHub, one for GitLab")

ran = []  # words of the commands of an earlier one: with all of these and more reports, a command has nothing new
for workflow in workflows:
    lines = re.sub(r"\\?\n +(?=-o )", " ", workflow).splitlines() # a command goes on where a line begins with -o
    commands = [shlex.split(line.strip(" -")) for line in lines if line.strip(" -").startswith("gaugeblock ")]
    expect([command[1] for command in commands] == ["make", "verify"], str(commands))
    make, verify = (command[1:] for command in commands)
    verify[verify.index("--subject") + 1] = FAULTS
    verify[verify.index("--kernel") + 1] = "faults/none"
    for command in make, verify:
        if not any(set(command) <= other for other in ran):
            run(*command, cwd=path(""))
            ran.append(set(command))
        if command is make and not ALL:
            for name in ("edge", "exact", "gaussian", "long", "sparse", "ties", "wide"):
                shutil.copy(path("suite/one-token.h5"), path(f"suite/{name}.h5"))
    few = [("few" if a == "suite" else a) for a in verify]  # one problem of the 13
    shutil.rmtree(path("few"), ignore_errors=True)
    os.mkdir(path("few"))
    shutil.copy(path("suite/one-token.h5"), path("few"))
    run(*few, cwd=path(""), code=3)

linter = shutil.which("check-jsonschema")
if not linter:
    print("no check-jsonschema here: the workflows were not checked against the schemas of GitHub and GitLab")
for workflow, schema in zip(workflows, ("vendor.github-workflows", "vendor.gitlab-ci")):
    with open(path("workflow.yml"), "w") as stream:
        stream.write(workflow)
    if linter:
        checked = subprocess.run([linter, "--builtin-schema", schema, path("workflow.yml")], capture_output=True, text=True)
        expect(checked.returncode == 0, checked.stdout)
