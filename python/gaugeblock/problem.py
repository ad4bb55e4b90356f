# SPDX-License-Identifier: Apache-2.0
"""A problem in memory that the program judges as it judges a fixture file: the socket below gaugeblock.testing.

A Problem owns a struct gb_fixture that its maker fills. judge() lays it behind a descriptor (gb_fixture_share), which
the program maps: nothing is written to a disk but what was asked for, and the judge, its checks and its words are those
of `gaugeblock verify`.
"""

import json
import os
import pathlib
import re
import shutil
import tempfile
import types
import typing

import numpy as np

from gaugeblock import native
from gaugeblock.fixture import code_arrays
from gaugeblock.report import Case, Report, Verdict
from gaugeblock.returned import bits

NAME, OUTPUTS, LIMITS = "problem", "output", "limits.h5"


class Problem:
    """fixture: the library's struct, of one layer or of a quantiser. experts: the caller's numbers of the fixture's experts,
    where these were renumbered; None: they are the caller's."""

    def __init__(self, fixture: typing.Any, experts: typing.Optional[np.ndarray] = None) -> None:
        _, lib = native.library()
        self.fixture = fixture
        self.experts = experts
        self.layers = 1
        self.quantises, self.exchanges = bool(lib.gb_fixture_quantises(fixture)), False
        sizes = ("tokens", "hidden", "intermediate", "experts", "top_k")
        self.shape = types.SimpleNamespace(**{name: getattr(fixture.shape, name) for name in sizes})

    @classmethod
    def of_layer(cls, sizes, weights, activations="bf16", router=False, experts=None) -> "Problem":
        """sizes: the fields of struct gb_shape by name; weights, activations: names of formats."""
        ffi, lib = native.library()
        error, pointer = ffi.new("struct gb_error *"), ffi.new("struct gb_fixture **")
        shape, format = ffi.new("struct gb_shape *", sizes), ffi.new("enum gb_format *")
        if not lib.gb_format_parse(weights.encode(), format):
            raise ValueError(f"format={weights!r}: no such format of weights")
        native.check(lib.gb_fixture_new(shape, 1, format[0], router, False, False, pointer, error), error)
        fixture = ffi.gc(pointer[0], lib.gb_fixture_free)
        fixture.rms_norm_epsilon = 1e-6  # of a norm that the problem does not have
        fixture.contract = f"{weights}.bf16.fma32/1".encode()
        fixture.generator, fixture.source = b"memory/1", b"gaugeblock.testing"
        fixture.recipe = ffi.string(lib.gb_recipe_default(format[0]).name)
        return cls(fixture, experts)

    def activation_rules(self) -> typing.Any:
        """The library's struct gb_quantiser of the activations; NULL for bf16."""
        _, lib = native.library()
        return lib.gb_fixture_activation_rules(self.fixture)

    def quantisation(self, rows: int) -> typing.Any:
        """The library's struct gb_quantisation of the first `rows` rows."""
        _, lib = native.library()
        return lib.gb_fixture_quantisation(self.fixture, rows)

    def code_arrays(self, rows: int) -> typing.Dict[str, typing.Tuple[typing.Dict[str, int], type]]:
        """Axes and type of a quantiser's "codes" and "scales"."""
        return code_arrays(self.quantisation(rows))

    def fill(self, pointer: typing.Any, array: np.ndarray) -> None:
        """The bytes of `array` at `pointer`."""
        ffi, _ = native.library()
        ffi.memmove(ffi.cast("void *", ffi.cast("uintptr_t", pointer)), ffi.from_buffer(bits(array)), array.nbytes)

    def add(self, extra: str) -> typing.Any:
        """Gives the layer an optional part, an enum gb_extra by its name, and returns the layer."""
        ffi, lib = native.library()
        error = ffi.new("struct gb_error *")
        native.check(lib.gb_fixture_add(self.fixture, getattr(lib, extra), error), error)
        return self.fixture.layer[0]

    def judge(
        self,
        write: typing.Callable[[str], None],
        words: typing.Sequence[str] = (),
        save: typing.Optional[typing.Union[str, "os.PathLike[str]"]] = None,
        limits: typing.Optional[typing.Callable[[str], typing.Any]] = None,
    ) -> typing.Tuple[Report, typing.Any]:
        """The program's report, and what `limits` makes of the file of limits. write(path) writes the outputs; words: the
        program's arguments. save: where the problem goes as a fixture, its outputs beside it, if it does not pass."""
        ffi, lib = native.library()
        error = ffi.new("struct gb_error *")
        shared = os.memfd_create("gaugeblock", os.MFD_CLOEXEC)
        try:
            with tempfile.TemporaryDirectory(prefix="gaugeblock-") as folder:
                native.check(lib.gb_fixture_share(self.fixture, shared, error), error)
                os.symlink(f"/proc/{os.getpid()}/fd/{shared}", os.path.join(folder, NAME))
                write(os.path.join(folder, OUTPUTS))
                asked = ["--limits", LIMITS] if limits else []
                done = native.run("verify", "-o", "record.json", f"--outputs={OUTPUTS}", *words, *asked, "--", NAME, folder=folder)
                record = pathlib.Path(folder, "record.json")
                if not record.exists():
                    raise ValueError(_refusal(done))
                cases = json.loads(record.read_text(encoding="utf-8"))["cases"]
                if any(case["verdict"] == "BAD_INPUT" for case in cases):
                    raise ValueError(_refusal(done))
                passed = all(case["verdict"] == "PASS" for case in cases)
                kept = None if passed or save is None else self._keep(shared, os.path.join(folder, OUTPUTS), os.fspath(save))
                made = limits(os.path.join(folder, LIMITS)) if limits else None
        finally:
            os.close(shared)
        return self._report(done.stdout, cases, kept), made

    def _keep(self, shared, outputs, save):
        """The problem as a fixture file, with the truth that the program has left in it, and its outputs beside it."""
        ffi, lib = native.library()
        error, pointer = ffi.new("struct gb_error *"), ffi.new("struct gb_fixture **")
        native.check(lib.gb_fixture_attach(shared, pointer, error), error)
        fixture = ffi.gc(pointer[0], lib.gb_fixture_free)
        native.check(lib.gb_fixture_write(os.fsencode(save), fixture, error), error)
        beside = f"{os.path.splitext(save)[0]}.outputs.h5"
        shutil.copyfile(outputs, beside)
        return save, beside

    def _report(self, text, cases, kept):
        text = self._renumbered(_told(text, kept))
        return Report(
            "output",
            kept[0] if kept else "arrays in memory",
            tuple(
                Case(c["batch"], Verdict[c["verdict"]], self._renumbered(c["reason"]), c, c["subject"].get("operator", "layer"))
                for c in cases
            ),
            text,
        )

    def _renumbered(self, text):
        """The text with the caller's numbers of experts."""
        if self.experts is None:
            return text
        number = lambda digits: str(self.experts[int(digits[0])])  # noqa: E731
        return re.sub(r"\bexperts? \d+(?:(?:, | and | to )\d+)*", lambda m: re.sub(r"\d+", number, m[0]), text)


def _refusal(done):
    """What the program said of input that it refuses, without its own name and that of the problem."""
    said = (done.stderr.strip().splitlines() or [f"gaugeblock verify ended with {done.returncode}"])[0]
    return re.sub(rf"^gaugeblock verify: (?:{NAME}: )?", "", said)


def _told(text, kept):
    """The program's table: its lines that reproduce name files that are there, or say how to get them."""
    line = re.compile(rf"^  reproduce  gaugeblock verify {NAME} --outputs {OUTPUTS}(.*)$", re.M)
    if kept is None:
        text = line.sub(r'  reproduce  save="failing.h5" writes the problem, and a line that judges it again', text)
    else:
        text = line.sub(rf"  reproduce  gaugeblock verify {kept[0]} --outputs {kept[1]}\1", text)
    return re.sub(r"\nDetails .*\n", "\n", text)
