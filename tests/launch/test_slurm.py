"""From what SLURM says to the commands that are run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ft_rendezvous.errors import ConfigError
from ft_rendezvous.launch.options import Options
from ft_rendezvous.launch.plan import Plan
from ft_rendezvous.launch.slurm import (
    Allocation,
    Array,
    awaited_endpoint,
    find_allocation,
    parse_srun_args,
    plan_slurm,
)

JOB = {
    "SLURM_JOB_ID": "42",
    "SLURM_JOB_NUM_NODES": "4",
    "SLURM_JOB_NODELIST": "n[7-10]",
    "SLURM_RESTART_COUNT": "2",
}
ARRAY = {
    **JOB,
    "SLURM_JOB_ID": "43",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_ARRAY_JOB_ID": "40",
    "SLURM_ARRAY_TASK_ID": "3",
    "SLURM_ARRAY_TASK_COUNT": "3",
    "SLURM_ARRAY_TASK_MIN": "1",
}
HETERO = {
    "SLURM_JOB_ID": "44",
    "SLURM_HET_SIZE": "2",
    "SLURM_JOB_NUM_NODES_HET_GROUP_0": "2",
    "SLURM_JOB_NUM_NODES_HET_GROUP_1": "3",
    "SLURM_JOB_NODELIST_HET_GROUP_0": "n[1-2]",
    "SLURM_JOB_NODELIST_HET_GROUP_1": "n[3-5]",
}


def scontrol(hosts: str = "n7\nn8\n", host: str = "machine7", topology: str = "topology/none") -> Callable[[str], str]:
    """What scontrol would print, by its first two words."""
    answers = {
        "show hostnames": hosts,
        "show node": f"NodeName=n7 Arch=x86_64 NodeAddr=10.0.0.7 NodeHostName={host} Version=22.05",
        "show config": f"SlurmdPort = 6818\nTopologyParam           = (null)\nTopologyPlugin          = {topology}\n",
    }
    return lambda arguments: answers[" ".join(arguments.split()[:2])]


def resolves(name: str) -> bool:
    return name in ("machine7", "10.0.0.7", "n1")


def allocation_of(env: dict[str, str], is_each_task: bool = False, topology: str = "topology/none") -> Allocation:
    return find_allocation(env, scontrol(topology=topology), resolves, is_each_task, here="login1")


def options(**changes: object) -> Options:
    return Options(**{"script": ("train.py", "--x"), **changes})  # type: ignore[arg-type]


def words(plan: Plan) -> list[str]:
    (srun,) = plan.nodes
    return list(srun.command)


def setting(plan: Plan, key: str) -> str | None:
    return plan.run.conf.get(key)


# --- what SLURM says --------------------------------------------------------------------------------


def test_a_job_is_found_in_the_environment() -> None:
    assert allocation_of(JOB) == Allocation(
        job_id="42",
        restarts=2,
        node_counts=(4,),
        first_host="machine7",
        batch_host="login1",
        has_topology=False,
        batch_node=None,
    )
    assert allocation_of({**JOB, "SLURMD_NODENAME": "n7"}).batch_node == "n7"


@pytest.mark.parametrize(("host", "found"), [("machine7", "machine7"), ("unknown", "10.0.0.7"), ("", "10.0.0.7")])
def test_the_first_node_is_named_so_that_others_find_it(host: str, found: str) -> None:
    assert find_allocation(JOB, scontrol(host=host), resolves, False, here="login1").first_host == found


def test_a_node_that_does_not_resolve_is_called_as_slurm_calls_it() -> None:
    assert find_allocation(JOB, scontrol(host="unknown"), lambda _: False, False, here="login1").first_host == "n7"


@pytest.mark.parametrize(
    ("plugin", "has"), [("topology/tree", True), ("topology/block", True), ("topology/none", False)]
)
def test_whether_the_cluster_knows_its_switches(plugin: str, has: bool) -> None:
    assert allocation_of(JOB, topology=plugin).has_topology is has


def test_an_array_is_found_and_its_first_task_hosts() -> None:
    assert allocation_of(ARRAY).array == Array(job_id="40", task_id=3, task_count=3, is_hosting=False)
    first = allocation_of({**ARRAY, "SLURM_ARRAY_TASK_ID": "1"}).array
    assert first is not None
    assert first.is_hosting


def test_the_tasks_of_an_array_may_be_runs_of_their_own() -> None:
    assert allocation_of(ARRAY, is_each_task=True).array is None


def test_a_heterogeneous_job_has_its_parts() -> None:
    assert allocation_of(HETERO).node_counts == (2, 3)


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({}, "pass --local 3+1 to start all nodes here, or submit the job with sbatch"),
        ({"SLURM_JOB_ID": "42"}, "SLURM_JOB_NUM_NODES is not: run this in a batch script or under salloc"),
    ],
)
def test_what_is_no_allocation_is_reported(env: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        allocation_of(env)
    assert message in str(error.value)


def test_a_controller_that_names_no_nodes_is_reported() -> None:
    with pytest.raises(ConfigError, match="is slurmctld up"):
        find_allocation(JOB, scontrol(hosts=""), resolves, False, here="login1")


# --- a job ------------------------------------------------------------------------------------------


def test_a_job_is_one_srun_whose_nodes_do_not_end_each_other() -> None:
    plan = plan_slurm(options(active=3, nproc_per_node=("8",)), allocation_of(JOB))
    command = words(plan)
    at = command.index("torchrun")
    assert command[0] == "srun"
    assert {"--no-kill", "--kill-on-bad-exit=0", "--wait=0", "--nodes=4", "--ntasks=4", "--ntasks-per-node=1"} <= set(
        command[:at]
    )
    assert command[at:] == [
        "torchrun",
        "--nnodes=3:4",
        "--nproc-per-node=8",
        "--max-restarts=1000000",
        "--rdzv-backend=ft",
        "--rdzv-endpoint=machine7:29400",
        "--rdzv-id=42.2",
        "--rdzv-conf=verdict_file=ft-logs/42.2/verdict.json,state_dir=ft-logs/42.2/state,identical_workers=true",
        "--logs-specs=ft",
        "--log-dir=ft-logs/42.2",
        "--tee=3",
        "train.py",
        "--x",
    ]
    assert "--output=ft-logs/42.2/node-%t.log" in command
    assert plan.store is None
    assert plan.publishes is None


def test_nodes_are_ended_by_slurm_and_not_through_srun() -> None:
    """srun answers SIGTERM by killing everything at once."""
    assert plan_slurm(options(), allocation_of(JOB)).end_command == ("scancel", "--signal=TERM", "42")


@pytest.mark.parametrize("is_each_task", [True, False])
def test_a_task_of_an_array_never_speaks_for_all(is_each_task: bool) -> None:
    """The job id of an array's last task is that of the array: what is done to it is done to every task."""
    env = {**ARRAY, "SLURM_JOB_ID": "40", "SLURMD_NODENAME": "n7"}
    plan = plan_slurm(options(requeues=3), allocation_of(env, is_each_task), "m:1")
    assert plan.end_command == ("scancel", "--signal=TERM", "40_3")
    assert (setting(plan, "exit_command") or "").endswith("ftr abandoned 40_3 n7 --requeue")
    assert allocation_of(env, is_each_task).job_id == "40_3"
    assert plan.run.run_id == ("40_3.2" if is_each_task else "40")


def test_a_job_whose_batch_script_is_lost_is_ended_by_its_nodes() -> None:
    batch = allocation_of({**JOB, "SLURMD_NODENAME": "n7"})

    def command(requeues: int) -> str | None:
        return setting(plan_slurm(options(requeues=requeues, store="stable:2000"), batch), "exit_command")

    assert command(0) == "ftr abandoned 42 n7"
    assert command(2) == "ftr abandoned 42 n7", "often enough"
    assert command(3) == "ftr abandoned 42 n7 --requeue"
    assert setting(plan_slurm(options(), allocation_of(JOB)), "exit_command") is None


def test_no_node_looks_for_a_batch_script_after_a_verdict_of_its_machine() -> None:
    batch = {"SLURMD_NODENAME": "n7"}
    only_if_lost = "[ $FT_VERDICT != unknown ] || ftr abandoned "
    for store in ("first-node", "batch-host"):
        plan = plan_slurm(options(store=store), allocation_of({**JOB, **batch}))
        assert setting(plan, "exit_command") == f"{only_if_lost}42 n7"
    hosting = allocation_of({**ARRAY, **batch, "SLURM_ARRAY_TASK_ID": "1"})
    assert setting(plan_slurm(options(), hosting), "exit_command") == f"{only_if_lost}40_1 n7"
    another = plan_slurm(options(), allocation_of({**ARRAY, **batch}), "m:1")
    assert setting(another, "exit_command") == "ftr abandoned 40_3 n7"


def test_all_nodes_train_without_an_option() -> None:
    assert plan_slurm(options(), allocation_of(JOB)).run.nnodes == "4:4"


@pytest.mark.parametrize("active", [0, 5])
def test_more_active_nodes_than_there_are_is_reported(active: int) -> None:
    with pytest.raises(ConfigError, match=f"--active {active} is not between 1 and the allocation's 4 nodes"):
        plan_slurm(options(active=active), allocation_of(JOB))


def test_cpus_per_task_reach_the_step() -> None:
    """srun has not taken them over from sbatch since SLURM 22.05."""
    assert "--cpus-per-task=12" in words(plan_slurm(options(), allocation_of({**JOB, "SLURM_CPUS_PER_TASK": "12"})))
    assert not [word for word in words(plan_slurm(options(), allocation_of(JOB))) if "cpus-per-task" in word]
    env = {**HETERO, "SLURM_CPUS_PER_TASK_HET_GROUP_0": "4", "SLURM_CPUS_PER_TASK_HET_GROUP_1": "8"}
    command = words(plan_slurm(options(), allocation_of(env)))
    assert command.index("--cpus-per-task=4") < command.index(":") < command.index("--cpus-per-task=8")


def test_more_arguments_for_srun_come_before_the_command() -> None:
    plan = plan_slurm(options(srun_args=parse_srun_args("--container-image 'my image'")), allocation_of(JOB))
    command = words(plan)
    assert command.index("--container-image") < command.index("my image") < command.index("torchrun")


def test_domains_come_from_the_topology_if_there_is_one_and_the_user_has_not_said() -> None:
    with_switches = allocation_of(JOB, topology="topology/tree")
    assert setting(plan_slurm(options(), with_switches), "domain_from") == "slurm-topology"
    assert setting(plan_slurm(options(conf={"domain": "a"}), with_switches), "domain_from") is None
    mine = plan_slurm(options(conf={"domain_from": "env:RACK"}), with_switches)
    assert setting(mine, "domain_from") == "env:RACK"
    assert setting(plan_slurm(options(), allocation_of(JOB)), "domain_from") is None


def test_what_the_user_sets_wins() -> None:
    conf = {
        "verdict_file": "/elsewhere.json",
        "state_dir": "/state",
        "identical_workers": "false",
        "lease_timeout": "9",
    }
    run = plan_slurm(options(conf=conf), allocation_of(JOB)).run
    assert run.conf == conf
    assert run.verdict_path == Path("/elsewhere.json")


def test_what_the_user_sets_in_a_file_wins_too(tmp_path: Path) -> None:
    text = f'verdict_file = "{tmp_path}/v.json"\nstate_dir = "/state"\njoin_timeout = 5\nidentical_workers = false\n'
    (tmp_path / "run.toml").write_text(text)
    run = plan_slurm(options(conf={"config": f"{tmp_path}/run.toml"}), allocation_of(JOB)).run
    assert run.conf == {"config": f"{tmp_path}/run.toml"}
    assert (run.verdict_path, run.join_s) == (tmp_path / "v.json", 5.0)


def test_a_secret_that_nodes_inherit_is_enough_and_is_in_no_command() -> None:
    conf = {"state_port": "8080", "state_addr": "0.0.0.0"}
    with pytest.raises(ConfigError, match="FT_STATE_TOKEN"):
        plan_slurm(options(conf=conf), allocation_of(JOB))
    plan = plan_slurm(options(conf=conf, state_token="secret"), allocation_of(JOB))
    assert "secret" not in "\n".join(plan.lines())


def test_settings_that_no_node_would_take_are_reported_before_any_is_started() -> None:
    with pytest.raises(ConfigError, match="unknown --rdzv-conf key 'lease_timout'"):
        plan_slurm(options(conf={"lease_timout": "5"}), allocation_of(JOB))


@pytest.mark.parametrize(
    ("nproc", "is_identical"), [(("8",), True), (("gpu",), False), (("auto",), False), (("8", "8"), True)]
)
def test_workers_are_identical_only_where_that_is_certain(nproc: tuple[str, ...], is_identical: bool) -> None:
    allocation = allocation_of(HETERO if len(nproc) > 1 else JOB)
    message = setting(plan_slurm(options(nproc_per_node=nproc), allocation), "identical_workers")
    assert message == ("true" if is_identical else None)


# --- where the store is -----------------------------------------------------------------------------


def test_a_store_on_the_batch_host_is_served_there_and_named_to_all() -> None:
    plan = plan_slurm(options(store="batch-host", port=29999, active=2), allocation_of(JOB))
    assert plan.store is not None
    assert list(plan.store.command) == [
        "ftr",
        "serve",
        "--endpoint=login1:29999",
        "--rdzv-id=42.2",
        "--nnodes=2:4",
        "--rdzv-conf=verdict_file=ft-logs/42.2/verdict.json,state_dir=ft-logs/42.2/state,identical_workers=true",
    ]
    assert "--rdzv-endpoint=login1:29999" in words(plan)
    assert not any("is_host" in word for word in plan.store.command)
    (conf,) = (word for word in words(plan) if word.startswith("--rdzv-conf="))
    assert conf.endswith(",is_host=false"), "the first node must not host it before the batch host does"


def test_a_store_elsewhere_is_only_named() -> None:
    plan = plan_slurm(options(store="stable:2000"), allocation_of(JOB))
    assert plan.store is None
    (serve,) = (line for line in plan.lines() if line.startswith("#"))
    assert serve.startswith("# on that host: ftr serve --endpoint=stable:2000 --rdzv-id=42.2 --nnodes=4:4 --rdzv-conf=")
    assert "--rdzv-endpoint=stable:2000" in words(plan)


# --- a job array ------------------------------------------------------------------------------------


def test_an_array_is_one_run_of_units() -> None:
    hosting = allocation_of({**ARRAY, "SLURM_ARRAY_TASK_ID": "1"})
    plan = plan_slurm(options(active=4), hosting)
    assert (plan.run.run_id, plan.run.nnodes) == ("40", "4:6")
    assert setting(plan, "unit_from") == "env:SLURM_ARRAY_TASK_ID"
    assert setting(plan, "unit_size") == "2"
    assert plan.nodes[0].env == {"FT_INFRA_RANK_BASE": "2"}
    assert plan.publishes == Path("ft-logs/40/endpoint")
    assert "--output=ft-logs/40/task-1-node-%t.log" in words(plan)


def test_the_other_tasks_read_where_the_store_is() -> None:
    allocation = allocation_of(ARRAY)
    assert awaited_endpoint(options(), allocation) == Path("ft-logs/40/endpoint")
    plan = plan_slurm(options(active=4, store="batch-host"), allocation, published="machine1:29400")
    assert "--rdzv-endpoint=machine1:29400" in words(plan)
    assert plan.store is None
    assert plan.publishes is None
    assert plan.nodes[0].env == {"FT_INFRA_RANK_BASE": "6"}


def test_no_task_waits_for_a_file_where_the_store_is_known() -> None:
    hosting = allocation_of({**ARRAY, "SLURM_ARRAY_TASK_ID": "1"})
    assert awaited_endpoint(options(), hosting) is None
    assert awaited_endpoint(options(store="stable:2000"), allocation_of(ARRAY)) is None
    assert awaited_endpoint(options(), allocation_of(JOB)) is None
    assert plan_slurm(options(store="stable:2000"), hosting).publishes is None


def test_tasks_that_cannot_train_whole_are_no_units() -> None:
    assert setting(plan_slurm(options(active=5), allocation_of(ARRAY), "m:1"), "unit_size") is None


def test_more_active_nodes_than_the_array_has_is_reported() -> None:
    with pytest.raises(ConfigError, match="--active 7 is not between 1 and the 6 nodes of the array's 3 tasks"):
        plan_slurm(options(active=7), allocation_of(ARRAY), "m:1")


# --- a heterogeneous job ----------------------------------------------------------------------------


def test_a_heterogeneous_job_is_one_srun_with_its_parts() -> None:
    plan = plan_slurm(options(nproc_per_node=("8", "4"), active=4), allocation_of(HETERO))
    command = words(plan)
    between = command.index(":")
    first, second = command[1:between], command[between + 1 :]
    assert {"--het-group=0", "--nodes=2", "--nproc-per-node=8", "--nnodes=4:5"} <= set(first)
    assert {"--het-group=1", "--nodes=3", "--nproc-per-node=4", "--nnodes=4:5"} <= set(second)
    assert setting(plan, "identical_workers") is None
    assert "--output=ft-logs/44.0/part-0-node-%n.log" in first
    assert "--output=ft-logs/44.0/part-1-node-%n.log" in second


def test_as_many_worker_counts_as_parts() -> None:
    with pytest.raises(ConfigError, match="has 3 values, and the job has 2 parts"):
        plan_slurm(options(nproc_per_node=("8", "4", "2")), allocation_of(HETERO))


# --- what is asked ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"script": ()}, "end the command with -- train.py"),
        ({"nproc_per_node": ("many",)}, "is not a number of workers"),
        ({"nproc_per_node": ("0",)}, "is not a number of workers"),
        ({"store": "stable:2000", "port": 2000}, "both name a port"),
        ({"store": "a:b"}, "--store a:b is neither first-node, batch-host nor HOST:PORT"),
        ({"store": "firstnode"}, "--store firstnode is neither first-node, batch-host nor HOST:PORT"),
        ({"script": ("--rdzv-backend=c10d", "train.py")}, "--rdzv-backend=c10d after -- is set by the launcher"),
        ({"script": ("python", "train.py")}, "write -- train.py"),
        ({"log_dir": Path("a,b")}, "splits settings at commas"),
    ],
)
def test_what_cannot_work_is_reported_at_once(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        options(**changes)
    assert message in str(error.value)


def test_options_of_the_script_itself_are_its_own() -> None:
    assert options(script=("--role", "trainer")).script, "torchrun's, and none of ours"
    assert options(script=("-m", "train", "--nnodes", "3")).script
    assert options(script=("train.py", "--log-dir", "x")).script


def test_a_job_of_one_kind_has_one_number_of_workers() -> None:
    with pytest.raises(ConfigError, match="this is not a heterogeneous job, give one value"):
        plan_slurm(options(nproc_per_node=("8", "4")), allocation_of(JOB))


def test_srun_arguments_must_be_words() -> None:
    with pytest.raises(ConfigError, match="No closing quotation"):
        parse_srun_args("--comment 'never ends")


def test_a_plan_reads_as_a_shell_script() -> None:
    plan = plan_slurm(options(log_dir=Path("my logs")), allocation_of({**ARRAY, "SLURM_ARRAY_TASK_ID": "1"}))
    made, published, srun, wait = plan.lines()
    assert made == "mkdir -p 'my logs'"
    assert published == "echo machine7:29400 >'my logs/endpoint'"
    assert srun.startswith("env FT_INFRA_RANK_BASE=2 srun --no-kill ")
    assert srun.endswith(" train.py --x </dev/null &")
    assert wait == "wait"
