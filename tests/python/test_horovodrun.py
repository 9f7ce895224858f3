"""The command horovodrun: every flag of the original is known, and none is accepted in silence."""

import os
import pathlib
import re
import subprocess
import sys

import pytest
import rueda as hvd
from worlds import TIMEOUT_SECONDS, results, ruedarun, run_ranks

from rueda.compat import horovodrun, horovodrun_config, horovodrun_flags
from rueda.compat.launch_plan import Refused, Setting, make_plan

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "horovodrun.md"

# Horovod's flags: spellings, destination, and an example of a value with what it is parsed as.
ORIGINAL = [
    ("-v --version", "version", None, True),
    ("-cb --check-build", "check_build", None, True),
    ("-np --num-proc", "num_proc", "3", 3),
    ("--disable-cache", "disable_cache", None, True),
    ("--start-timeout", "start_timeout", "50", 50),
    ("--network-interfaces", "nics", "eth0,lo", {"eth0", "lo"}),
    ("--network-interface", "nics", "lo", {"lo"}),
    ("--output-filename", "output_filename", "out", "out"),
    ("--verbose", "verbose", None, True),
    ("--config-file", "config_file", "", ""),
    ("-p --ssh-port", "ssh_port", "22", 22),
    ("-i --ssh-identity-file", "ssh_identity_file", "id", "id"),
    ("--fusion-threshold-mb", "fusion_threshold_mb", "32", 32),
    ("--cycle-time-ms", "cycle_time_ms", "2.5", 2.5),
    ("--cache-capacity", "cache_capacity", "9", 9),
    ("--hierarchical-allreduce", "hierarchical_allreduce", None, True),
    ("--no-hierarchical-allreduce", "hierarchical_allreduce", None, False),
    ("--hierarchical-allgather", "hierarchical_allgather", None, True),
    ("--no-hierarchical-allgather", "hierarchical_allgather", None, False),
    ("--torus-allreduce", "torus_allreduce", None, True),
    ("--no-torus-allreduce", "torus_allreduce", None, False),
    ("--autotune", "autotune", None, True),
    ("--no-autotune", "autotune", None, False),
    ("--autotune-log-file", "autotune_log_file", "a.csv", "a.csv"),
    ("--autotune-warmup-samples", "autotune_warmup_samples", "1", 1),
    ("--autotune-steps-per-sample", "autotune_steps_per_sample", "2", 2),
    ("--autotune-bayes-opt-max-samples", "autotune_bayes_opt_max_samples", "3", 3),
    ("--autotune-gaussian-process-noise", "autotune_gaussian_process_noise", "0.5", 0.5),
    ("--min-np --min-num-proc", "min_num_proc", "1", 1),
    ("--max-np --max-num-proc", "max_num_proc", "4", 4),
    ("--slots-per-host", "slots", "2", 2),
    ("--elastic-timeout", "elastic_timeout", "600", 600),
    ("--reset-limit", "reset_limit", "0", 0),
    ("--blacklist-cooldown-range", "cooldown_range", "60 300", [60, 300]),
    ("--timeline-filename", "timeline_filename", "t.json", "t.json"),
    ("--timeline-mark-cycles", "timeline_mark_cycles", None, True),
    ("--no-timeline-mark-cycles", "timeline_mark_cycles", None, False),
    ("--no-stall-check", "no_stall_check", None, True),
    ("--stall-check", "no_stall_check", None, False),
    ("--stall-check-warning-time-seconds", "stall_check_warning_time_seconds", "60", 60),
    ("--stall-check-shutdown-time-seconds", "stall_check_shutdown_time_seconds", "0", 0),
    ("--mpi-threads-disable", "mpi_threads_disable", None, True),
    ("--no-mpi-threads-disable", "mpi_threads_disable", None, False),
    ("--mpi-args", "mpi_args", "=--map-by slot", "--map-by slot"),
    ("--tcp", "tcp_flag", None, True),
    ("--binding-args", "binding_args", "=--bind-to core", "--bind-to core"),
    ("--num-nccl-streams", "num_nccl_streams", "2", 2),
    ("--thread-affinity", "thread_affinity", "1", 1),
    ("--gloo-timeout-seconds", "gloo_timeout_seconds", "30", 30),
    ("--log-level", "log_level", "DEBUG", "DEBUG"),
    ("--log-with-timestamp", "log_with_timestamp", None, True),
    ("--log-without-timestamp", "log_with_timestamp", None, False),
    (
        "-prefix-timestamp --prefix-output-with-timestamp",
        "prefix_output_with_timestamp",
        None,
        True,
    ),
    ("--log-hide-timestamp", "log_with_timestamp", None, False),
    ("--no-log-hide-timestamp", "log_with_timestamp", None, True),
    ("-H --hosts", "hosts", "localhost:2", "localhost:2"),
    ("-hostfile --hostfile", "hostfile", "hosts.txt", "hosts.txt"),
    ("--host-discovery-script", "host_discovery_script", "find.sh", "find.sh"),
    ("--gloo", "use_gloo", None, True),
    ("--mpi", "use_mpi", None, True),
    ("--jsrun", "use_jsrun", None, True),
]

# What is refused, and a word of the reason. Everything else starts the job.
REFUSED = {
    "use_jsrun": "jsrun",
    "thread_affinity": "taskset",
}


# What a flag needs beside it to have an effect.
WITH = {
    **dict.fromkeys(("mpi_args", "binding_args"), ["--mpi"]),
    **dict.fromkeys(("max_num_proc", "elastic_timeout", "reset_limit", "cooldown_range"), ["--min-np", "1"]),
    "slots": ["--host-discovery-script", "find.sh"],
}


def words_of(spelling, value):
    if value is None:
        return [spelling]
    return [spelling + value] if value.startswith("=") else [spelling, *value.split()]


def horovodrun_command(*arguments, env=None):
    done = subprocess.run(
        [sys.executable, "-m", "rueda.compat.horovodrun", *map(str, arguments)],
        env={**os.environ, "RUEDA_RUEDARUN": ruedarun(), **(env or {})},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=TIMEOUT_SECONDS,
    )
    return done.returncode, done.stdout, done.stderr


def plan_of(*arguments):
    parsed = horovodrun.parse_args(["-np", "2", *arguments])
    return make_plan(parsed.settings)


@pytest.mark.parametrize("spellings, dest, value, parsed_as", ORIGINAL, ids=lambda v: str(v)[:40])
def test_a_flag_of_the_original_is_known_with_its_destination(spellings, dest, value, parsed_as):
    for spelling in spellings.split():
        if dest == "config_file":
            continue  # it would be read
        parsed = horovodrun.parse_args([*words_of(spelling, value), "python", "train.py"])
        assert getattr(parsed, dest) == parsed_as
        assert parsed.command == ["python", "train.py"]
        assert parsed.settings == {dest: Setting(parsed_as, spelling)}


def test_the_table_has_the_original_flags_and_no_others():
    ours = sorted(name for flag in horovodrun_flags.FLAGS for name in flag.spellings)
    assert ours == sorted(name for row in ORIGINAL for name in row[0].split())


def test_what_is_not_given_has_the_original_defaults():
    parsed = horovodrun.parse_args(["-np", "2", "true"])
    plain = "disable_cache verbose tcp_flag use_gloo use_mpi use_jsrun prefix_output_with_timestamp"
    for _, dest, _, _ in ORIGINAL:
        if dest != "num_proc":
            assert getattr(parsed, dest) is (False if dest in plain.split() else None), dest


@pytest.mark.parametrize("spellings, dest, value, parsed_as", ORIGINAL, ids=lambda v: str(v)[:40])
def test_a_flag_is_obeyed_noted_or_refused(spellings, dest, value, parsed_as, tmp_path):
    if dest in ("version", "check_build", "config_file", "num_proc"):
        return
    (tmp_path / "hosts.txt").write_text("localhost slots=2\n")
    here = {"hosts.txt": str(tmp_path / "hosts.txt"), "eth0,lo": "lo"}.get(value, value)
    spelling = spellings.split()[0]
    arguments = words_of(spelling, here)
    reason = REFUSED.get(dest) if parsed_as is not False else None
    if reason:
        with pytest.raises(Refused, match=f"{spelling}: .*{reason}"):
            plan_of(*arguments)
        return
    others = WITH.get(dest, [])
    plan, bare = plan_of(*others, *arguments), plan_of(*others)
    fate = next(f.fate for f in horovodrun_flags.FLAGS if spelling in f.spellings)
    if fate == horovodrun_flags.SET:
        assert plan.options != bare.options or plan.environment != bare.environment
        assert not plan.notes
    elif fate == horovodrun_flags.NOTED:
        assert plan.notes and plan.notes[0].startswith(f"{spelling} has no effect: ")
    else:
        assert fate == horovodrun_flags.MET and not plan.notes


def test_autotune_is_accepted_and_one_line_says_why_nothing_is_tuned(tmp_path):
    log = tmp_path / "tuned.csv"
    code, _, error = horovodrun_command("-np", "2", "--autotune", "--autotune-log-file", log, "true")
    assert code == 0
    [note] = [line for line in error.splitlines() if "autotune" in line]
    assert note.endswith("--autotune-log-file has no effect: nothing is tuned (docs/benchmarks.md), and no log is written")
    assert not log.exists()
    assert plan_of("--autotune").environment["HOROVOD_AUTOTUNE"] == "1" and not plan_of("--autotune").notes
    assert "HOROVOD_AUTOTUNE" not in plan_of().environment


def whoami():
    return hvd.rank()


WHY_NOT = "nothing is tuned: no setting gained 5 % over the defaults where it was measured"


@pytest.mark.parametrize(
    "options, env, times",
    [
        (["--autotune"], {}, 1),
        ([], {"HOROVOD_AUTOTUNE": "1"}, 1),
        ([], {"RUEDA_AUTOTUNE": "1"}, 1),
        (["--no-autotune"], {"HOROVOD_AUTOTUNE": "1"}, 0),
        ([], {}, 0),
    ],
)
def test_rank_0_says_why_nothing_is_tuned(options, env, times):
    outcome = run_ranks(2, whoami, env, options=options)
    assert sorted(results(outcome)) == [0, 1]
    assert outcome.output.count(WHY_NOT) == times, outcome.output


def test_flags_become_the_variables_of_both():
    environment = plan_of(
        *"--fusion-threshold-mb 32 --cache-capacity 7 --cycle-time-ms 2.5 --start-timeout 9".split(),
        *"--timeline-filename t.json --log-level debug --tcp --hierarchical-allreduce".split(),
        *"--stall-check-warning-time-seconds 5 --no-torus-allreduce --log-hide-timestamp".split(),
    ).environment
    for name, value in {
        "FUSION_THRESHOLD": str(32 << 20),
        "CACHE_CAPACITY": "7",
        "START_TIMEOUT": "9",
        "TIMELINE": "t.json",
        "LOG_LEVEL": "DEBUG",
        "LOG_HIDE_TIME": "1",
        "STALL_CHECK_TIME_SECONDS": "5",
    }.items():
        assert environment[f"HOROVOD_{name}"] == environment[f"RUEDA_{name}"] == value
    assert environment["HOROVOD_CYCLE_TIME"] == "2.5"
    assert environment["HOROVOD_HIERARCHICAL_ALLREDUCE"] == "1"
    assert environment["HOROVOD_TORUS_ALLREDUCE"] == "0"
    assert environment["RUEDA_TRANSPORT"] == "tcp" and environment["NCCL_IB_DISABLE"] == "1"

    quiet = plan_of("--stall-check-warning-time-seconds", "5", "--no-stall-check").environment
    assert quiet["HOROVOD_STALL_CHECK_DISABLE"] == "1"
    assert quiet["RUEDA_STALL_CHECK_TIME_SECONDS"] == "0"
    assert quiet["RUEDA_STALL_SHUTDOWN_TIME_SECONDS"] == "0"


def test_mpi_is_ruedaruns_and_its_arguments_mpiruns():
    plan = plan_of("--mpi", "--mpi-args=--mca btl self,tcp", "--binding-args=--bind-to core")
    assert plan.options[2:] == ["--mpi", "--mpi-args=--bind-to core --mca btl self,tcp"]
    assert "HOROVOD_CONTROLLER" not in plan.environment and not plan.notes
    plan = plan_of("--mpi-args=--mca btl self,tcp")
    assert plan.options == plan_of().options and "only --mpi asks for" in plan.notes[0]
    from_file, _ = horovodrun_config.settings_of({"controller": "mpi"}, "c.yaml")
    assert "--mpi" in make_plan({**from_file, "num_proc": Setting(2, "-np")}).options


def test_elastic_flags_are_ruedaruns_with_horovods_policy():
    policy = ["--on-failure", "blacklist", "--join", "announce"]
    plan = plan_of("--min-np", "1")
    assert plan.options == ["-np", "2", "--min-np", "1", *policy] and not plan.notes
    assert "HOROVOD_HOSTNAME" not in plan.environment  # each rank's own, and it may be any
    plan = plan_of(
        *"--host-discovery-script ./find.sh --slots-per-host 2 --max-num-proc 8 --reset-limit 3".split(),
        *"--blacklist-cooldown-range 60 300 --elastic-timeout 9".split(),
    )
    assert plan.options[2:] == [
        *"--max-np 8 --host-discovery-script ./find.sh --slots-per-host 2 --reset-limit 3".split(),
        *"--blacklist-cooldown-range 60 300".split(),
        *policy,
    ]
    assert plan.environment["RUEDA_ELASTIC_TIMEOUT"] == plan.environment["HOROVOD_ELASTIC_TIMEOUT"] == "9"


def test_elastic_flags_of_a_job_that_is_not_elastic_are_said_to_do_nothing():
    plan = plan_of(*"--max-np 4 --reset-limit 3 --elastic-timeout 9".split())
    assert plan.options == plan_of().options
    assert [note.split(":")[0] for note in plan.notes] == [
        f"{flag} has no effect" for flag in ("--elastic-timeout", "--max-np", "--reset-limit")
    ]
    [note] = plan_of("--min-np", "1", "--slots-per-host", "3").notes
    assert note == "--slots-per-host has no effect: it is for hosts that a discovery script prints"


def test_the_files_keys_of_elastic_jobs_are_the_flags():
    content = {"elastic": {"min_np": 1, "blacklist_cooldown_range": "60 300", "timeout": 9}}
    settings, notes = horovodrun_config.settings_of(content, "c.yaml")
    plan = make_plan({**settings, "num_proc": Setting(2, "-np")})
    assert not notes and not plan.notes
    assert plan.options[:7] == "-np 2 --min-np 1 --blacklist-cooldown-range 60 300".split()
    settings, _ = horovodrun_config.settings_of({"elastic": {"blacklist_cooldown_range": "a b"}}, "c.yaml")
    with pytest.raises(Refused, match="expected two numbers, MIN and MAX, found 'a b'"):
        make_plan({**settings, "num_proc": Setting(2, "-np")})


def test_every_variable_of_rueda_that_is_set_is_one_of_its_settings():
    done = subprocess.run([ruedarun(), "--print-config"], capture_output=True, text=True, check=True)
    known = {line.split()[0] for line in done.stdout.splitlines()}
    own = {flag.own for flag in horovodrun_flags.FLAGS if flag.own}
    assert len(own) > 7 and own <= known


@pytest.mark.parametrize(
    "arguments, reason",
    [
        ("--fusion-threshold-mb -1", "0 or more, found -1"),
        ("--cycle-time-ms -0.5", "0 or more"),
        ("--cache-capacity -2", "0 or more"),
        ("--autotune-warmup-samples -1", "0 or more"),
        ("--autotune-gaussian-process-noise 1.5", "0 to 1"),
        ("--num-nccl-streams -1", "0 or more"),
        ("--gloo-timeout-seconds -1", "0 or more"),
        ("--thread-affinity -1", "0 or more"),
        ("--stall-check-warning-time-seconds -1", "0 or more"),
        ("--start-timeout 0", "1 or more"),
        ("--min-np -1", "1 or more, found -1"),
        ("--max-num-proc 0", "1 or more"),
        ("--slots-per-host 0", "1 or more"),
        ("--reset-limit -1", "0 or more"),
        ("--elastic-timeout 0", "1 or more"),
        ("--blacklist-cooldown-range 0 9", "1 to 3600 seconds"),
        ("--blacklist-cooldown-range 9 3601", "1 to 3600 seconds"),
        ("--blacklist-cooldown-range 9 8", "MIN not above MAX"),
        ("-np 0", "1 or more"),
        ("--network-interfaces no-such-nic", "no interface no-such-nic; it has .*lo"),
        ("--output-filename=", "expected text"),
        ("--hostfile /nonexistent", "cannot read the host file /nonexistent: .*No such file"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_accepted(arguments, reason):
    with pytest.raises(Refused, match=arguments.split()[0].split("=")[0] + ".*" + reason):
        plan_of(*arguments.split())


@pytest.mark.parametrize(
    "arguments, reason",
    [
        ("-np x true", "invalid int value: 'x'"),
        ("-np 2 --cycle-time-ms x true", "invalid float value: 'x'"),
        ("-np 2 --log-level LOUD true", "invalid choice: 'LOUD'"),
        ("-np 2 --no-such-flag true", "unrecognized arguments: --no-such-flag"),
        ("-np 2 --log true", "ambiguous option: --log"),
        ("-np 2 --gloo --mpi true", "--mpi: not allowed with argument --gloo"),
        ("-np 2 --autotune --no-autotune true", "not allowed with argument --autotune"),
        ("-np 2 --min-np two true", "invalid int value: 'two'"),
        ("-np 2 -H a:1 --host-discovery-script f true", "not allowed with argument -H/--hosts"),
        ("-np 2 -H a:1 --hostfile f true", "not allowed with argument -H/--hosts"),
        ("-np 2 --stall-check --no-stall-check true", "not allowed with"),
        ("-np 2 --blacklist-cooldown-range 1", "expected 2 arguments"),
    ],
)
def test_a_wrong_command_line_ends_with_2_and_a_reason(arguments, reason, capsys):
    with pytest.raises(SystemExit) as end:
        horovodrun.run_commandline(arguments.split())
    assert end.value.code == 2
    assert reason in capsys.readouterr().err


def test_all_reasons_are_given_at_once(capsys):
    with pytest.raises(SystemExit) as end:
        horovodrun.run_commandline(["--mpi", "--tcp", "--min-np", "0", "--cache-capacity", "-1", "true"])
    assert end.value.code == 2
    error = capsys.readouterr().err
    for flag in ("--tcp: --mpi asks for MPI", "--min-np: ", "--cache-capacity: ", "ranks is missing: -np"):
        assert f"horovodrun: error: {flag}" in error or flag in error


def test_the_commands_own_flags_are_left_alone():
    for own, command in [
        ("-np 2", "python train.py --log x -np 9 --verbose -cb -- --mpi"),
        ("-np 2 --verbose --cycle-time-ms=3 -p22", "sh -c true"),
        ("--num-p 2 --blacklist 1 2 --fusion-threshold-m 3", "./a --lr 0.1"),
        ("-np 2 -H localhost:2 --output-fil x", "prog -H y"),
    ]:
        assert horovodrun.split_command((own + " " + command).split()) == (
            own.split(),
            command.split(),
        )
    assert horovodrun.split_command(["-np", "2", "--", "-odd", "--", "x"])[1] == ["-odd", "--", "x"]


def test_help_says_what_becomes_of_each_flag(capsys):
    with pytest.raises(SystemExit) as end:
        horovodrun.run_commandline(["--help"])
    text = re.sub(r"\s+", " ", capsys.readouterr().out)
    assert end.value.code == 0
    for flag in horovodrun_flags.FLAGS:
        assert flag.spellings[-1] in text
        assert flag.meaning in text or "%" in flag.meaning


def test_the_page_holds_the_table_of_the_code():
    assert horovodrun_flags.table() in PAGE.read_text(), "run scripts/generate_tables.py"


def test_ruedarun_has_the_flag_or_says_that_it_is_horovodruns():
    own = subprocess.run([ruedarun(), "--help"], capture_output=True, text=True, check=True).stdout
    for name in (name for flag in horovodrun_flags.FLAGS for name in flag.spellings if name.startswith("--")):
        if re.search(rf"[\s,]{name}[\s,{{]", own):
            continue
        done = subprocess.run([ruedarun(), name, "-np", "1", "true"], capture_output=True, text=True)
        assert done.returncode == 2, name
        assert f"unknown option '{name}'; horovodrun takes it, and says what becomes of it" in done.stderr


def test_hosts_and_how_they_are_reached_are_handed_on(tmp_path):
    file = tmp_path / "hosts"
    file.write_text("node1 slots=2\n")
    plan = plan_of("-hostfile", str(file), "-p", "2222", "-i", "key", "--network-interfaces", "ib0,eth0")
    assert plan.options[2:] == ["--hostfile", str(file), "--ssh-port", "2222", "--ssh-identity-file", "key",
                                "--network-interfaces", "=eth0,=ib0"]
    code, _, err = horovodrun_command("-np", 3, "-hostfile", file, "true")
    assert code == 2 and f"needs 3 slots, --hostfile {file} has 2" in err
    file.write_text("localhost slots=two\n")
    code, _, err = horovodrun_command("-np", 2, "-hostfile", file, "true")
    assert code == 2 and "hosts:1: 'two' is no number of slots" in err


# The configuration file.

CONFIG = {
    "controller": "gloo",
    "params": {"fusion_threshold_mb": 32, "cycle_time_ms": 5, "hierarchical_allreduce": True},
    "autotune": {"enabled": False, "log_file": "a.csv"},
    "timeline": {"filename": "t.json", "mark_cycles": None},
    "stall_check": {"enabled": True, "warning_time_seconds": 70},
    "library_options": {"num_nccl_streams": 1},
    "logging": {"level": "INFO", "with_timestamp": False},
}


def test_the_files_keys_are_the_flags_settings():
    settings, notes = horovodrun_config.settings_of(CONFIG, "c.yaml")
    assert not notes
    assert {dest: setting.value for dest, setting in settings.items()} == {
        "use_gloo": True,
        "fusion_threshold_mb": 32,
        "cycle_time_ms": 5,
        "hierarchical_allreduce": True,
        "autotune": False,
        "autotune_log_file": "a.csv",
        "timeline_filename": "t.json",
        "no_stall_check": False,
        "stall_check_warning_time_seconds": 70,
        "num_nccl_streams": 1,
        "log_level": "INFO",
        "log_with_timestamp": False,
    }
    assert settings["cycle_time_ms"].origin == "params.cycle_time_ms (in c.yaml)"
    plan = make_plan({**settings, "num_proc": Setting(2, "-np")})
    assert plan.environment["HOROVOD_FUSION_THRESHOLD"] == str(32 << 20)
    assert len(plan.notes) == 4  # cycle time, hierarchy, log without autotune, streams


def test_wrong_and_unknown_things_in_the_file_are_named():
    for content, reason in [
        ({"controller": "slurm"}, "controller .*expected gloo or mpi, found 'slurm'"),
        ({"params": 3}, "params .*expected keys below it, found 3"),
        ([1], "must be a mapping"),
    ]:
        with pytest.raises(Refused, match=reason):
            horovodrun_config.settings_of(content, "c.yaml")
    for content, reason in [
        ({"params": {"fusion_threshold_mb": "big"}}, "whole number, found 'big'"),
        ({"params": {"fusion_threshold_mb": -1}}, "0 or more, found -1"),
        ({"stall_check": {"enabled": "maybe"}}, "true or false, found 'maybe'"),
        ({"logging": {"level": "LOUD"}}, "expected one of TRACE.*found 'LOUD'"),
    ]:
        with pytest.raises(Refused, match=reason):
            make_plan(horovodrun_config.settings_of(content, "c.yaml")[0])
    _, notes = horovodrun_config.settings_of({"parms": {}, "params": {"cycle_time": 1}}, "c.yaml")
    assert notes == [
        "parms (in c.yaml) is not known; did you mean params?",
        "params.cycle_time (in c.yaml) is not known; did you mean params.cycle_time_ms?",
    ]
    assert horovodrun_config.settings_of(None, "empty.yaml") == ({}, [])


def test_a_flag_wins_over_the_file_wherever_it_stands(monkeypatch):
    monkeypatch.setattr(horovodrun_config, "read", lambda path: {**CONFIG, "controller": "mpi"})
    for arguments in (
        "--config-file c.yaml --fusion-threshold-mb 8 --no-stall-check --gloo",
        "--fusion-threshold-mb 8 --no-stall-check --gloo --config-file c.yaml",
    ):
        parsed = horovodrun.parse_args(["-np", "2", *arguments.split(), "true"])
        assert parsed.fusion_threshold_mb == 8 and parsed.no_stall_check is True
        assert parsed.cycle_time_ms == 5 and parsed.stall_check_warning_time_seconds == 70
        assert parsed.use_gloo and not parsed.use_mpi
        assert parsed.settings["fusion_threshold_mb"].origin == "--fusion-threshold-mb"


def test_without_pyyaml_the_file_is_refused_with_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(Refused, match="c.yaml needs PyYAML.*pip install pyyaml"):
        horovodrun_config.read("c.yaml")


def test_the_file_is_yaml(tmp_path):
    pytest.importorskip("yaml")
    file = tmp_path / "c.yaml"
    file.write_text("params:\n  fusion_threshold_mb: 16\n  cycle_time_ms: 2.5\n")
    parsed = horovodrun.parse_args(["-np", "2", "--config-file", str(file), "true"])
    assert parsed.fusion_threshold_mb == 16 and parsed.cycle_time_ms == 2.5
    [example] = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.S)
    file.write_text(example)
    parsed = horovodrun.parse_args(["-np", "2", "--config-file", str(file), "true"])
    assert parsed.fusion_threshold_mb == 32 and parsed.stall_check_warning_time_seconds == 120
    assert parsed.notes == [] and make_plan(parsed.settings).environment
    for section, key, _ in horovodrun_flags.FILE_KEYS:
        assert section in example and key in example
    file.write_text("params: [")
    with pytest.raises(Refused, match="is not YAML"):
        horovodrun_config.read(str(file))
    with pytest.raises(Refused, match="cannot read .*absent.yaml"):
        horovodrun_config.read(str(tmp_path / "absent.yaml"))


def test_a_file_that_expands_without_end_is_refused(tmp_path):
    pytest.importorskip("yaml")
    file = tmp_path / "c.yaml"
    aliases = [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    for content, reason in {
        "a: " + "[" * 5000 + "]" * 5000: "nested too deeply",
        "\n".join(["a0: &a0 [x]", *aliases]): "more than 10000 values",
        "params: &p\n  fusion_threshold_mb: *p": "more than 10000 values",
        "a" * (1 << 21): "too long",
    }.items():
        file.write_text(content)
        with pytest.raises(Refused, match=reason):
            horovodrun_config.read(str(file))


# The command as such, with real ranks.

RANK = """
import os, sys
import numpy, rueda as hvd
hvd.init()
sums = hvd.allreduce(numpy.arange(3.0) + hvd.rank(), op=hvd.Sum)
names = "RANK SIZE LOCAL_RANK LOCAL_SIZE CROSS_RANK CROSS_SIZE HOSTNAME CONTROLLER CPU_OPERATIONS"
places = [os.environ["HOROVOD_" + name] for name in names.split()]
places += [os.environ[name] for name in ("HOROVOD_FUSION_THRESHOLD", "HOROVOD_CYCLE_TIME")]
print("sums", sums.tolist(), "places", *places, "args", *sys.argv[1:], flush=True)
print("an error line", file=sys.stderr, flush=True)
"""


def test_two_ranks_run_and_see_what_horovods_ranks_see(tmp_path):
    code, out, err = horovodrun_command(
        *"-np 2 -H localhost:2 --fusion-threshold-mb 1 --cycle-time-ms 4".split(),
        *["--output-filename", tmp_path / "out", "-prefix-timestamp"],
        *[sys.executable, "-c", RANK, "--log", "-np", "7"],
        env={"RUEDA_FUSION_THRESHOLD": "123"},
    )
    assert code == 0, out + err
    assert "horovodrun: note: --cycle-time-ms has no effect: " in err
    for rank in range(2):
        line = (
            f"sums [1.0, 3.0, 5.0] places {rank} 2 {rank} 2 0 1 localhost gloo gloo 1048576 4.0 "
            "args --log -np 7"
        )
        time = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} "
        assert re.search(rf"^{time}\[{rank}\]<stdout>: {re.escape(line)}$", out, re.M), out
        assert re.search(rf"^{time}\[{rank}\]<stderr>: an error line$", err, re.M), err
        copies = tmp_path / "out" / f"rank.{rank}"
        assert (copies / "stdout").read_text() == line + "\n"
        *warned, last = (copies / "stderr").read_text().splitlines()
        assert last == "an error line"
        assert ["HOROVOD_CYCLE_TIME has no effect" in text for text in warned] == [True] * (rank == 0)


def test_the_exit_code_is_the_failed_ranks():
    code, _, err = horovodrun_command("-np", 2, "sh", "-c", "exit $((HOROVOD_RANK * 5))")
    assert code == 5 and "rank 1 " in err
    code, _, err = horovodrun_command("-np", 2, "no-such-program")
    assert code == 127 and "no-such-program" in err


def test_questions_are_answered_without_ranks():
    code, out, _ = horovodrun_command("--check-build")
    assert code == 0 and "Available frameworks" in out
    assert os.path.dirname(sys.executable) in out, "another Python was asked"
    code, out, _ = horovodrun_command("-v")
    assert code == 0 and re.fullmatch(r"\d+\.\d+\.\d+\n", out)


def test_what_cannot_be_is_refused_before_any_rank_starts(tmp_path):
    started = tmp_path / "started"
    for arguments, reason in [
        (["--mpi", "--tcp"], "horovodrun: error: --tcp: "),
        (["-H", "else where:2"], "'else where' is no name of a host"),
        (["-H", "localhost:1"], "has 1"),
        (["--min-np", 3], "--min-np 3 is more than -np 2"),
        (["--min-np", 1, "--max-np", 1], "-np 2 is more than --max-np 1"),
        (["--min-np", 1, "--mpi"], "--min-np and --mpi exclude each other"),
        (["--host-discovery-script", tmp_path / "absent"], "absent': there is no such file"),
        (["--host-discovery-script", os.devnull], "null': it is no file"),
    ]:
        code, _, err = horovodrun_command("-np", 2, *arguments, "touch", started)
        assert code == 2 and reason in err, err
    code, _, err = horovodrun_command("-np", 2)
    assert code == 2 and "the command is missing" in err
    assert not started.exists()
