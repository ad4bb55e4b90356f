# SPDX-License-Identifier: Apache-2.0
"""pytest: a fixture `gaugeblock_verify` that fails the test unless the verdict is PASS.

    @pytest.mark.parametrize("batch", [1, 8, 32])
    def test_moe(gaugeblock_verify, batch):
        gaugeblock_verify(moe, "layer.h5", framework="torch", device="cuda", batches=[batch])

UNSUPPORTED skips the test with its reason. The verdict and every case's figures become properties of the test, which
`pytest --junitxml` writes."""

import pytest

from gaugeblock.report import Verdict
from gaugeblock.verify import verify


@pytest.fixture
def gaugeblock_verify(record_property):
    """gaugeblock.verify, with the report checked. Returns the Report."""

    def run(function, fixture, **options):
        report = verify(function, fixture, **options)
        record_property("gaugeblock_verdict", report.verdict.name)
        for case in report.cases:
            if case.record and "overall" in case.record.get("metrics", {}):
                overall = case.record["metrics"]["overall"]["subject_truth"]
                record_property(f"gaugeblock_batch_{case.tokens}_cosine_min", overall["quantised"]["cosine_min"])
        if report.verdict is Verdict.UNSUPPORTED:
            pytest.skip(report.cases[0].reason)
        return report.check()

    return run
