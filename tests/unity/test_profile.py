"""`unity profile` on the command line."""

from __future__ import annotations

import pytest

from unity.profile import app
from unity.support.cli import run_app


@pytest.mark.parametrize("devices", [(), ("--devices", "1")])
def test_machine_with_gpus_is_refused_on_a_computer_without(tmp_path, capsys, monkeypatch, devices):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    given = ["--machine", "dgx-a100", "-o", str(tmp_path / "profile.json"), *devices]
    with pytest.raises(SystemExit) as caught:
        run_app(app, "profile", given)
    assert caught.value.code == 2
    expected = "unity: error: machine: dgx-a100 has GPUs, this computer has none\n"
    assert capsys.readouterr().err == expected
