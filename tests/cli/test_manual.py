# SPDX-License-Identifier: Apache-2.0
"""Manual pages and the shells' completions have every command and option that --help has, and shells and man take them."""
import os
import re
import shutil
import subprocess

from kept import same, steady
from program import PROGRAM, expect, path, refused, run

os.mkdir(path("manual"))
run("manual", path("manual"))
refused("manual", path("no/such"))
commands = re.findall(r"^  ([a-z]+) ", run("--help").stdout.partition("\nExample")[0], re.M)
expect({"list", "make", "verify", "identify"} <= set(commands) and "worker" not in commands, str(commands))


def text(name):
    with open(path("manual/" + name)) as stream:
        return stream.read()


def options(command):
    """Long options, short options."""
    text = run(command, "--help").stdout
    return set(re.findall(r"^(?:  -., |      )--([a-z-]+)", text, re.M)), set(re.findall(r"^  -(.), --", text, re.M))


scripts_at = {"bash/gaugeblock": "bash", "zsh/_gaugeblock": "zsh", "fish/gaugeblock.fish": "fish"}
scripts = {shell: text(name) for name, shell in scripts_at.items()}
expect(sorted(os.listdir(path("manual/man1"))) == sorted(["gaugeblock.1", *(f"gaugeblock-{c}.1" for c in commands)]), "pages")
for command in commands:
    page = text(f"man1/gaugeblock-{command}.1").replace("\\-", "-")
    expect(f"gaugeblock-{command}" in text("man1/gaugeblock.1").replace("\\-", "-"), f"gaugeblock(1) does not name {command}")
    modes = re.findall(r"^\.(nf|fi)$", page, re.M)
    expect(modes == ["nf", "fi"] * (len(modes) // 2), f"gaugeblock-{command}(1): examples begin and end as {modes}")
    long, short = options(command)
    for name in long:
        expect(f"--{name}\\fR" in page, f"gaugeblock-{command}(1) lacks --{name}")
        expect(f"--{name} " in scripts["bash"] and f"--{name}" in scripts["zsh"], f"{command} --{name}")
        expect(f"seen_subcommand_from {command}' -l {name} " in scripts["fish"], f"fish: {command} --{name}")
    for name in short:
        expect(f"-{name}\\fR, " in page and f"-{name},--" in scripts["zsh"] and f" -s {name} " in scripts["fish"], name)
expect(len(options("verify")[0]) > 10 and options("power")[1] == {"g", "o"}, "options were read")

# --help has the options by their names, or letters where they have one.
for command in commands:
    listed = re.findall(r"^(?:  -(.), |      )--([a-z-]+)", run(command, "--help").stdout.partition("\nExample")[0], re.M)
    first, plain = [(letter or name)[0] for letter, name in listed], [name for letter, name in listed if not letter]
    expect(first == sorted(first) and plain == sorted(plain), f"{command} --help: {listed}")

# -h, help COMMAND and --help are one text; what was not asked for is not told.
for command in commands:
    expect(run(command, "-h").stdout == run("help", command).stdout == run(command, "--help").stdout, command)
expect(run("help").stdout == run("-h").stdout == run("--help").stdout, "help")
for arguments in (["help", "worker"], ["help", "nothing"], ["help", "list", "make"]):
    refused(*arguments)
# Alone it lists its commands, and is no success: a script whose command is empty has verified nothing.
alone = run(code=2)
expect(not alone.stdout and all(f"  {command} " in alone.stderr for command in commands), alone.stderr)
expect(max(map(len, run("--help").stdout.splitlines())) < 100, "lines that no terminal shows")

os.symlink(PROGRAM, path("gaugeblock"))
environment = {**os.environ, "PATH": f"{path('')}:{os.environ['PATH']}"}


def complete(*words):
    script = f"source {path('manual/bash/gaugeblock')}; COMP_WORDS=({' '.join(words)} ''); COMP_CWORD={len(words) - 1}; " \
             '_gaugeblock; printf "%s\n" "${COMPREPLY[@]}"'
    done = subprocess.run(["bash", "-uc", script], capture_output=True, text=True, env=environment, cwd=path("manual"))
    expect(done.returncode == 0 and not done.stderr.replace("compopt", ""), f"{words}: {done}")
    return done.stdout.split()


expect(complete("gaugeblock", "ver") == ["verify"] == complete("gaugeblock", "help", "ver"), "a command")
expect(complete("gaugeblock", "verify", "--min") == ["--minimise"], "an option")
expect("cpu/nvfp4-layer" in complete("gaugeblock", "verify", "--kernel", "cpu/nv"), "a kernel")
expect(complete("gaugeblock", "make", "--model", "mixtral") == ["mixtral-8x7b"], "a model")
expect(complete("gaugeblock", "verify", "man") == ["man1"] == complete("gaugeblock", "verify", "--gate", "man"), "a file")
expect(complete("gaugeblock", "list", "mod") == ["models"] and complete("gaugeblock", "make", "--seed", "") == [], "words")
for name, shell in scripts_at.items():
    if shutil.which(shell):
        subprocess.run([shell, "-n", path("manual/" + name)], check=True)
if shutil.which("fish"):
    source = f"source {path('manual/fish/gaugeblock.fish')}; complete -C "
    for line, found in (("gaugeblock ver", "verify"), ("gaugeblock verify --min", "--minimise"),
                        ("gaugeblock make --model mixtral", "mixtral-8x7b"), ("gaugeblock list mod", "models")):
        done = subprocess.run(["fish", "-c", source + f"'{line}'"], capture_output=True, text=True, env=environment)
        expect(found in done.stdout and not done.stderr, f"{line}: {done}")
if shutil.which("groff"):
    for page in os.listdir(path("manual/man1")):
        done = subprocess.run(["groff", "-man", "-ww", "-z", path("manual/man1/" + page)], capture_output=True, text=True)
        expect(done.returncode == 0 and not done.stderr, f"{page}: {done.stderr}")

pages = [f"man1/{name}" for name in sorted(os.listdir(path("manual/man1")))]
same("cli_manual", steady("\n".join(f"--- {name}\n{text(name)}" for name in [*pages, *scripts_at])))
