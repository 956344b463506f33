"""How weighing reaches processes: through their environment, quietly, and only where torch is imported."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import pytest
from weighing import ENVIRONMENT, ROOT, SCRIPTS, script, weigh

pytestmark = pytest.mark.launch

STARTUP_FOLDER = ROOT / "src/weighbridge/weigh/startup"
MEAN = "mean-of-microbatch-means"
LIST_MODULES = "import sys; print(*sorted(name.split('.')[0] for name in sys.modules))"
SITE = "print('mine runs as', __name__)\nimport sys\nsys.mine = __file__\n"


def as_child(folder: Path, **variables: str) -> dict[str, str]:
    """The environment of a process of a weighed command."""
    path = f"{STARTUP_FOLDER}{':' + variables.pop('PYTHONPATH') if 'PYTHONPATH' in variables else ''}"
    return {**ENVIRONMENT, "WEIGHBRIDGE_RECORD": str(folder), **variables, "PYTHONPATH": path}


def output(command: list[str], environment: dict[str, str]) -> str:
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60).stdout


def test_a_process_without_torch_loads_nothing_heavy(tmp_path: Path) -> None:
    names = output([sys.executable, "-c", LIST_MODULES], as_child(tmp_path)).split()
    assert not {"torch", "numpy", "json", "typing", "psutil", "click"} & set(names)
    whole = "import sys; print('weighbridge' in sys.modules, 'weighbridge.cli' in sys.modules)"
    assert output([sys.executable, "-c", whole], as_child(tmp_path)) == "False False\n"
    assert list(tmp_path.iterdir()) == []


def test_a_process_without_torch_starts_as_quickly(tmp_path: Path) -> None:
    plain, weighed = [], []
    for _ in range(15):
        for times, environment in ((plain, ENVIRONMENT), (weighed, as_child(tmp_path))):
            started = time.perf_counter()
            subprocess.run([sys.executable, "-c", "pass"], env=environment, check=True)
            times.append(time.perf_counter() - started)
    assert min(weighed) - min(plain) < 0.020


def test_the_users_own_sitecustomize_on_the_path_runs(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(SITE)
    environment = as_child(tmp_path / "records", PYTHONPATH=str(tmp_path))
    code = "import sys, sitecustomize; print(sys.mine, sitecustomize.__file__)"
    mine = str(tmp_path / "sitecustomize.py")
    assert output([sys.executable, "-c", code], environment) == f"mine runs as sitecustomize\n{mine} {mine}\n"


def test_a_sitecustomize_in_site_packages_runs(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "env")], check=True)
    (folder,) = (tmp_path / "env" / "lib").glob("python*/site-packages")
    (folder / "sitecustomize.py").write_text(SITE)
    code = "import sys, sitecustomize; print(getattr(sys, 'mine', None), sitecustomize.__file__"
    finders = "len([f for f in sys.meta_path if 'weighbridge' in type(f).__module__])"
    python = str(tmp_path / "env" / "bin" / "python")
    mine = str(folder / "sitecustomize.py")
    plain = output([python, "-c", f"{code}, 0)"], ENVIRONMENT)
    found = output([python, "-c", f"{code}, {finders})"], as_child(tmp_path / "records"))
    assert found == plain.removesuffix("0\n") + "1\n"
    # Debian's Python has one beside the standard library, and Python itself takes that before any in site-packages
    of_the_system = (Path(sysconfig.get_path("stdlib")) / "sitecustomize.py").exists()
    assert of_the_system or found == f"mine runs as sitecustomize\n{mine} {mine} 1\n"


def test_a_sitecustomize_that_fails_fails_as_it_always_did(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("raise ValueError('of the user')\n")
    environment = as_child(tmp_path / "records", PYTHONPATH=str(tmp_path))
    command = [sys.executable, "-c", "print('goes on')"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "goes on\n"
    assert "ValueError: of the user" in done.stderr


@pytest.mark.parametrize("way", ["script", "module", "code"])
def test_a_folder_with_modules_named_like_ours(way: str, tmp_path: Path) -> None:
    for name in ("imports", "start", "startup", "probe", "weigh", "calls", "hooks", "records", "options", "recorder"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong module was imported')\n")
    (tmp_path / "train.py").write_text(
        f"import sys\nsys.path.insert(0, {str(ROOT / SCRIPTS)!r})\nimport bad_run\nbad_run.train('two-steps', 0, 1)\n"
    )
    command = {"script": ["train.py"], "module": ["-m", "train"], "code": ["-c", "import train"]}[way]
    found = weigh(tmp_path, "python", *command, cwd=tmp_path)
    assert (found.exit_code, found.json["verdict"], found.json["steps"]) == (0, "right", 2), found.stderr


@pytest.mark.parametrize("workers", ["fork", "spawn"])
def test_workers_of_a_data_loader_are_no_ranks(workers: str, tmp_path: Path) -> None:
    records = tmp_path / "records"
    found = weigh(tmp_path, *script("even.py", "--workers", workers), options=("--uneven", "--record", str(records)))
    assert (found.json["world_size"], found.gradient["rule"]) == (1, MEAN), found.stdout
    assert found.reported("loss")["rule"] == MEAN
    assert found.json["problems"] == []
    assert len(list(records.glob("process-*.jsonl"))) == 1


def test_ranks_that_a_script_forks_or_spawns_with_one_rank_as_well(tmp_path: Path) -> None:
    for ranks, method in ((1, "fork"), (2, "spawn")):
        found = weigh(tmp_path, *script("bad_run.py", "none", "--spawn", str(ranks), "--method", method))
        assert (found.exit_code, found.json["world_size"]) == (0, ranks), found.stderr
        assert {piece["rank"] for piece in found.gradient["pieces"]} == set(range(ranks))
        assert found.json["problems"] == []


def test_hooked_functions_are_still_found_read_and_pickled(tmp_path: Path) -> None:
    found = weigh(tmp_path, *script("inspects.py"))
    assert found.json["command_exit_code"] == 0, found.stderr
    assert "nothing is missing" in found.stdout
