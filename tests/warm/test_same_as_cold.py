"""A script cannot tell a warm worker from a cold one: each row of the table in docs/warm-workers.md."""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.warm.stage import CLIENT_COMMAND, COLD_WARNING, MARK, SCRIPTS, Stage, Started, open_stage

REPORT = SCRIPTS / "report.py"
SAME: tuple[str, ...] = (
    "argv",
    "orig_argv",
    "executable",
    "flags",
    "cwd",
    "path",
    "main",
    "streams",
    "is default",
    "signals",
    "leads",
)
SAME += ("umask", "limits", "affinity", "descriptors", "command", "shown environment", "environment", "name")


def run_both(stage: Stage, *words: object, **options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the script reports when it starts cold, and when it starts warm."""
    # One after the other to the same file: its name is in the report.
    found = []
    for is_cold in (True, False):
        output = stage.folder / "same.out"
        with output.open("wb") as out:
            started = stage.start(*words, is_cold=is_cold, stdout=out, stderr=out, **dict(options))
        started.output = started.errors = output
        found.append(started.report())
        assert COLD_WARNING not in started.text
    assert (found[0]["is forked"], found[1]["is forked"]) == (False, True)
    return found[0], found[1]


def end_of(started: Started) -> tuple[int, str]:
    return started.wait(), started.error_text


def test_what_a_script_sees_of_its_process(stage: Stage) -> None:
    cold, warm = run_both(stage, "-u", REPORT, "--lr", "0.1", "ü")
    assert {name: warm[name] for name in SAME} == {name: cold[name] for name in SAME}


def test_streams_without_u(stage: Stage) -> None:
    cold, warm = run_both(stage, REPORT)
    assert warm["streams"] == cold["streams"]
    assert warm["streams"][1][1] == "BufferedWriter"


def test_arguments_of_a_relative_script(stage: Stage) -> None:
    folder = stage.folder / "folder"
    folder.mkdir()
    (folder / "report.py").write_text(REPORT.read_text())
    cold, warm = run_both(stage, "-u", "folder/report.py", "x")
    assert warm["main"] == cold["main"]
    assert (warm["argv"], warm["path"][0]) == (cold["argv"], cold["path"][0])
    assert warm["path"] == cold["path"]


@pytest.mark.parametrize("is_safe", ["", "1"])
def test_the_path_with_and_without_safe_path(tmp_path: Path, is_safe: str) -> None:
    variables = {"PYTHONSAFEPATH": is_safe, "PYTHONPATH": os.pathsep.join(("/some/where", "/else"))}
    with open_stage(tmp_path, variables, modules=()) as stage:
        cold, warm = (stage.run("import sys; print(sys.path)", is_cold=is_cold) for is_cold in (True, False))
        assert (warm.text, warm.error_text) == (cold.text, "")
        assert "/some/where" in warm.text
        assert (str(tmp_path) in warm.text) is not bool(is_safe)


LOCALE = """
import os, sys
print(ascii(sys.argv[1:]), sys.getfilesystemencoding(), sys.stdout.encoding, os.environ.get("LC_CTYPE"))
"""


@pytest.mark.parametrize(
    "variables",
    [
        {"LC_ALL": "", "LANG": ""},
        {"LC_ALL": "C.UTF-8"},
        {"LC_ALL": "C", "PYTHONUTF8": "0"},
        {"LC_ALL": "", "LANG": "", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    ],
)
def test_words_and_streams_in_every_locale(tmp_path: Path, variables: dict[str, str]) -> None:
    """The client is an isolated interpreter: it does not read Python's variables, and may take the words for others."""
    with open_stage(tmp_path, {"LC_CTYPE": "", **variables}, modules=()) as stage:
        script = stage.script(LOCALE)
        cold, warm = (
            stage.start("-u", script, os.fsdecode(b"\xc3\xbc \xff"), is_cold=is_cold) for is_cold in (True, False)
        )
        assert (*end_of(warm), warm.text) == (*end_of(cold), cold.text)
        assert cold.text


def test_a_link_to_a_script(stage: Stage) -> None:
    (stage.folder / "link.py").symlink_to(REPORT)
    cold, warm = run_both(stage, "-u", "./link.py")
    assert warm["main"] == cold["main"]
    assert warm["path"] == cold["path"]


def test_a_module(stage: Stage) -> None:
    package = stage.folder / "mypackage"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "report.py").write_text(REPORT.read_text())
    cold, warm = run_both(stage, "-u", "-m", "mypackage.report", "x")
    assert {name: warm[name] for name in SAME} == {name: cold[name] for name in SAME}


def test_limits_affinity_umask_and_working_directory(stage: Stage) -> None:
    cpu = sorted(os.sched_getaffinity(0))[-1]

    def change() -> None:
        os.umask(0o027)
        resource.setrlimit(resource.RLIMIT_NOFILE, (512, 1024))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.sched_setaffinity(0, [cpu])

    folder = stage.folder / "here"
    folder.mkdir()
    cold, warm = run_both(stage, "-u", REPORT, preexec_fn=change, cwd=folder)
    assert {name: warm[name] for name in SAME} == {name: cold[name] for name in SAME}
    assert (warm["umask"], warm["affinity"], warm["limits"]["RLIMIT_NOFILE"]) == (0o027, [cpu], [512, 1024])


def test_ignored_and_blocked_signals(stage: Stage) -> None:
    def change() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])

    cold, warm = run_both(stage, "-u", REPORT, preexec_fn=change)
    assert warm["signals"] == cold["signals"]
    assert "SIGHUP" not in warm["signals"]["handlers"]


def test_other_open_descriptors(stage: Stage) -> None:
    with (stage.folder / "file").open("w") as file:
        cold, warm = run_both(stage, "-u", REPORT, pass_fds=(file.fileno(),))
        assert warm["descriptors"] == cold["descriptors"]
        assert warm["descriptors"][str(file.fileno())] == str(stage.folder / "file")


HOLDS = """
import os, sys
for number in map(int, sys.argv[2].split(",")):
    fd = os.open(sys.argv[1], os.O_RDWR)
    if fd != number:
        os.dup2(fd, number)
        os.close(fd)
    os.set_inheritable(number, True)
os.execv(sys.argv[3], sys.argv[3:])
"""


def test_a_descriptor_of_any_number(light_stage: Stage) -> None:
    """Also of a number that the nursery or the guardian uses itself while it makes the worker."""
    file = light_stage.folder / "file"
    file.write_text("text")
    script = light_stage.script(
        "import os, sys\n"
        "for number in map(int, sys.argv[1:]):\n"
        "    print(number, os.path.basename(os.readlink(f'/proc/self/fd/{number}')), os.lseek(number, 0, os.SEEK_CUR))"
    )
    for numbers in (*([number] for number in range(3, 24)), [*range(3, 40)], [*range(700, 712)]):
        holder = (sys.executable, "-I", "-S", "-c", HOLDS, str(file), ",".join(map(str, numbers)))
        started = light_stage.start("-u", script, *numbers, command=[*holder, *CLIENT_COMMAND])
        assert end_of(started) == (0, ""), numbers
        assert started.text.splitlines() == [f"{number} file 0" for number in numbers]
        assert file.read_text() == "text"


def test_a_descriptor_whose_number_a_preloaded_module_uses(tmp_path: Path) -> None:
    packages = tmp_path / "site-packages"
    packages.mkdir()
    (packages / "opens.py").write_text("import os\nfd = os.dup2(os.open('/dev/zero', os.O_RDONLY), 41)")
    with open_stage(tmp_path, {"FT_PRELOAD": "opens", "PYTHONPATH": str(packages)}, modules=()) as stage:
        assert stage.run("import opens, os; print(os.read(opens.fd, 1))").text == "b'\\x00'\n"
        file = tmp_path / "file"
        file.touch()
        script = stage.script("import os; print(os.readlink('/proc/self/fd/41'))")
        holder = (sys.executable, "-I", "-S", "-c", HOLDS, str(file), "41")
        started = stage.start("-u", script, command=[*holder, *CLIENT_COMMAND])
        assert (started.wait(), started.text.strip()) == (0, str(file))
        assert COLD_WARNING in started.error_text


def test_a_descriptor_that_the_worker_closes_is_closed(light_stage: Stage) -> None:
    """No other process may keep it: a reader waits for its end, a lock for its release."""
    script = light_stage.script(
        "import os, sys, time\nos.close(int(sys.argv[1]))\nfor fd in (0, 1, 2):\n    os.close(fd)\ntime.sleep(600)"
    )
    reader, writer = os.pipe()
    output, stdout = os.pipe()
    light_stage.start("-u", script, writer, pass_fds=(writer,), stdout=stdout, stderr=stdout)
    os.close(writer)
    os.close(stdout)
    for fd in (reader, output):
        ready, _, _ = select.select([fd], [], [], 60)
        assert ready, "the worker has closed it"
        assert os.read(fd, 100) == b""
        os.close(fd)


def test_an_environment_of_a_megabyte(stage: Stage) -> None:
    text = "x" * 100_000
    env = {f"FT_TEST_{number}": text for number in range(10)}
    cold, warm = run_both(stage, "-u", REPORT, env=env)
    assert warm["environment"] == cold["environment"]
    assert sum(map(len, warm["environment"].values())) > 1_000_000


IMPORT_ALL = f"""
import json, random, sys, uuid, multiprocessing, tempfile, threading, os
import numpy, torch, torch._dynamo
found = dict(
    threads=[torch.get_num_threads(), torch.get_num_interop_threads(), len(os.listdir("/proc/self/task"))],
    blas=numpy.random.rand(300, 300).dot(numpy.random.rand(300, 300)).shape and len(os.listdir("/proc/self/task")),
    random=[torch.initial_seed(), torch.rand(2).tolist(), random.random(), numpy.random.rand(),
            str(uuid.uuid4()), str(uuid.uuid1()), multiprocessing.current_process().authkey.hex(),
            os.path.basename(tempfile.mktemp())],
    name=multiprocessing.current_process().name,
    is_main=threading.main_thread() is threading.current_thread(),
    native=threading.get_native_id() == os.getpid(),
    inductor=os.environ.get("TORCHINDUCTOR_CACHE_DIR"),
)
print({MARK!r} + json.dumps(found))
"""


def test_random_state_is_shared_by_no_two_workers(stage: Stage) -> None:
    one, other = ({json.dumps(each) for each in stage.run(IMPORT_ALL).report()["random"]} for _ in range(2))
    assert len(one) == len(other) == 8
    assert one & other == set()


def test_generators_of_a_preloaded_module_are_shared_by_no_two_workers(tmp_path: Path) -> None:
    """But one with a seed of its own has that seed in every worker, as in every cold one."""
    packages = tmp_path / "site-packages"
    packages.mkdir()
    (packages / "draws.py").write_text(
        "import random\nclass Own(random.Random): pass\n"
        "drawn, own, seeded, later = random.Random(), Own(), random.Random(7), random.Random()\n"
        "drawn.random(); seeded.random(); later.seed(8)"
    )
    script = "import draws; print(*(each.random() for each in (draws.drawn, draws.own, draws.seeded, draws.later)))"
    with open_stage(tmp_path, {"FT_PRELOAD": "draws", "PYTHONPATH": str(packages)}, modules=()) as stage:
        cold, one, other = (stage.run(script, is_cold=is_cold).text.split() for is_cold in (True, False, False))
    assert len({*cold[:2], *one[:2], *other[:2]}) == 6
    assert cold[2:] == one[2:] == other[2:]


def test_numbers_of_threads(stage: Stage) -> None:
    cold, warm = (stage.run(IMPORT_ALL, is_cold=is_cold).report() for is_cold in (True, False))
    assert (warm["threads"], warm["blas"]) == (cold["threads"], cold["blas"])
    assert (warm["name"], warm["is_main"], warm["native"]) == ("MainProcess", True, True)


BLAS = f"""
import json, os, numpy
a = numpy.random.rand(400, 400)
a.dot(a)
print({MARK!r} + json.dumps({{"threads": len(os.listdir("/proc/self/task"))}}))
"""


@pytest.mark.parametrize("wanted", ["", "2"])
def test_threads_of_openblas(tmp_path: Path, wanted: str) -> None:
    """The nursery has loaded it with one thread. A worker has as many as a cold one."""
    variables = {"OMP_NUM_THREADS": "", "OPENBLAS_NUM_THREADS": wanted}
    with open_stage(tmp_path, variables, modules=("numpy",)) as stage:
        cold, warm = stage.run(BLAS, is_cold=True), stage.run(BLAS)
        assert warm.error_text == ""
        count = min(int(wanted or 64), len(os.sched_getaffinity(0)))
        assert warm.report() == cold.report() == {"threads": count}


PICKLES = """
import multiprocessing, pickle, sys, os

class Thing:
    def __eq__(self, other):
        return isinstance(other, Thing)

def work(thing):
    return (os.path.basename(sys.argv[0]), thing == Thing(), __name__)

if __name__ == "__main__":
    assert pickle.loads(pickle.dumps(Thing())) == Thing()
    for method in ("spawn", "fork", "forkserver"):
        with multiprocessing.get_context(method).Pool(1) as pool:
            print("found", method, *pool.apply(work, (Thing(),)))
"""


def test_pickling_and_multiprocessing(stage: Stage) -> None:
    cold, warm = (stage.start("-u", stage.script(PICKLES), is_cold=is_cold) for is_cold in (True, False))
    assert (warm.wait(), warm.text) == (cold.wait(), cold.text)
    assert warm.text.count("found") == 3


ENDS = {
    "return": "print('end')",
    "exit code": "import sys; sys.exit(37)",
    "exit text": "import sys; sys.exit('no luck')",
    "os._exit": "import os; os._exit(41)",
    "error": "def f():\n    raise ValueError('no')\nf()",
    "syntax": "def f(:\n    pass",
    "interrupt": "raise KeyboardInterrupt",
    "abort": "import os; os.abort()",
    "kill": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "term": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "segv": "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
    "atexit": "import atexit, sys; atexit.register(print, 'at exit'); sys.exit(3)",
    "atexit after error": "import atexit; atexit.register(print, 'at exit'); raise ValueError",
    "thread": "import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.2), print('late'))).start()",
    "hook": "import sys\nsys.excepthook = lambda *_: print('hook')\nraise ValueError",
    "unraisable": "class A:\n    def __del__(self):\n        print('deleted')\na = A()",
    "exec": "import os, sys; os.execv('/bin/sh', ['sh', '-c', 'echo became sh; exit 9'])",
}


@pytest.mark.parametrize("name", ENDS)
def test_every_way_to_end(stage: Stage, name: str) -> None:
    script = stage.script(ENDS[name])
    cold, warm = (stage.start("-u", script, is_cold=is_cold) for is_cold in (True, False))
    assert (*end_of(warm), warm.text) == (*end_of(cold), cold.text)


@pytest.mark.parametrize("name", ["error", "exit code", "interrupt", "return"])
def test_every_way_a_module_ends(stage: Stage, name: str) -> None:
    stage.script(ENDS[name], "mymodule.py")
    cold, warm = (stage.start("-u", "-m", "mymodule", is_cold=is_cold) for is_cold in (True, False))
    assert (*end_of(warm), warm.text) == (*end_of(cold), cold.text)


def test_a_script_that_is_not_there(stage: Stage) -> None:
    cold, warm = (stage.start("-u", "nowhere.py", is_cold=is_cold) for is_cold in (True, False))
    assert warm.wait() == cold.wait() == 2
    assert cold.error_text in warm.error_text


CATCHES = """
import os, signal, sys, time
def caught(number, frame):
    print("caught", int(number), flush=True)
    if number == signal.SIGTERM:
        sys.exit(5)
for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGHUP, signal.SIGCONT, signal.SIGRTMIN + 3):
    signal.signal(number, caught)
print("ready", os.getpid(), flush=True)
while True:
    time.sleep(0.05)
"""


def test_signals_reach_the_worker(light_stage: Stage) -> None:
    started = light_stage.start("-u", light_stage.script(CATCHES))
    started.wait_for("ready")
    for signum in (signal.SIGUSR1, signal.SIGHUP, signal.SIGCONT, signal.SIGRTMIN + 3):
        os.kill(started.pid, signum)
        started.wait_for(f"caught {int(signum)}")
    os.killpg(started.pid, signal.SIGTERM)
    assert started.wait() == 5
    assert started.text.count(f"caught {int(signal.SIGTERM)}") == 1


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGABRT, signal.SIGQUIT])
def test_a_signal_that_nothing_catches_ends_both(light_stage: Stage, signum: signal.Signals) -> None:
    started = light_stage.start("-u", light_stage.script("import time; print('ready'); time.sleep(600)"))
    started.wait_for("ready")
    os.kill(started.pid, signum)
    assert started.wait() == -signum
    light_stage.assert_nothing_left()


def test_a_worker_signals_its_parent(light_stage: Stage) -> None:
    """Torchrun is the parent of a cold worker."""
    parent = light_stage.script(
        "import signal, subprocess, sys\n"
        "signal.signal(signal.SIGUSR1, lambda *_: print('the parent heard', flush=True))\n"
        "sys.exit(subprocess.Popen(sys.argv[1:], start_new_session=True).wait())",
        "parent.py",
    )
    child = light_stage.script("import os, signal; os.kill(os.getppid(), signal.SIGUSR1)", "child.py")
    started = light_stage.start(parent, sys.executable, "-I", "-S", _client(), "-u", child, is_cold=True)
    assert started.wait() == 0, started.error_text
    assert "the parent heard" in started.text


def test_a_whole_process_group_gets_torchs_signal(light_stage: Stage) -> None:
    script = light_stage.script(
        "import os, time, signal\n"
        "pid = os.fork()\n"
        "if pid == 0:\n    time.sleep(600)\n"
        "signal.signal(signal.SIGTERM, lambda *_: (print('child', os.waitpid(pid, 0)[1], flush=True), os._exit(0)))\n"
        "print('ready', flush=True)\ntime.sleep(600)"
    )
    started = light_stage.start("-u", script)
    started.wait_for("ready")
    os.killpg(started.pid, signal.SIGTERM)
    assert started.wait() == 0
    assert f"child {int(signal.SIGTERM)}" in started.text


def test_the_agent_finds_the_worker_behind_the_client(light_stage: Stage) -> None:
    from ft_rendezvous.agent.processes import catches, find_worker, forward  # noqa: PLC0415

    started = light_stage.start("-u", light_stage.script(CATCHES))
    pid = int(started.wait_for("ready").split()[1])
    assert find_worker(started.pid) == pid != started.pid
    assert find_worker(os.getpid()) == os.getpid()
    assert catches(pid, signal.SIGUSR1)
    assert forward(signal.SIGUSR1, [started.pid]) == [pid]
    started.wait_for(f"caught {int(signal.SIGUSR1)}")


def test_the_agent_finds_the_worker_where_few_files_may_be_open(light_stage: Stage) -> None:
    """It would signal the client, which passes everything on: a worker without a handler for a drain would end."""
    from ft_rendezvous.agent.processes import forward  # noqa: PLC0415

    def change() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))

    script = light_stage.script("import time; print('ready'); time.sleep(600)")
    started = light_stage.start("-u", script, preexec_fn=change)
    started.wait_for("ready")
    assert started.error_text == ""
    assert forward(signal.SIGUSR1, [started.pid]) == []


def test_standard_input_and_a_pipe(light_stage: Stage) -> None:
    script = light_stage.script("import sys; print(sys.stdin.read().upper(), end='')")
    done = subprocess.run(
        [sys.executable, "-I", "-S", _client(), "-u", script],
        input=b"a\nb\n",
        stdout=subprocess.PIPE,
        env={**light_stage.environment, "FT_NURSERY": light_stage.nursery.address},
        check=True,
        start_new_session=True,
    )
    assert done.stdout == b"A\nB\n"


def test_the_console_script_is_the_same_client(light_stage: Stage) -> None:
    program = Path(sys.executable).parent / "ftr-python"
    started = light_stage.start("-u", light_stage.script("import sys; sys.exit(7)"), command=[str(program)])
    assert (started.wait(), started.error_text) == (7, "")


def _client() -> str:
    from ft_rendezvous.warm.nursery import CLIENT  # noqa: PLC0415

    return str(CLIENT)


def test_without_a_nursery_it_is_the_ordinary_interpreter(light_stage: Stage) -> None:
    for address in ("", "@ft-rendezvous/nursery/nothing"):
        started = light_stage.start("-u", light_stage.script("import sys; sys.exit(7)"), env={"FT_NURSERY": address})
        assert started.wait() == 7
        assert (COLD_WARNING in started.error_text) is bool(address)


def test_a_client_waits_for_the_imports_of_the_nursery(tmp_path: Path) -> None:
    """To import beside the nursery would take as long."""
    packages = tmp_path / "site-packages"
    packages.mkdir()
    gate = tmp_path / "gate"
    (packages / "slow.py").write_text(f"import os, time\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.02)")
    with open_stage(tmp_path, {"FT_PRELOAD": "slow", "PYTHONPATH": str(packages)}, modules=()) as stage:
        started = stage.start("-u", stage.script("import sys; print('slow' in sys.modules)"))
        with pytest.raises(subprocess.TimeoutExpired):
            started.wait(1)
        gate.touch()
        assert (started.wait(), started.text, started.error_text) == (0, "True\n", "")
