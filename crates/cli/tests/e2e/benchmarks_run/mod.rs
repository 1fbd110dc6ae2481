//! Each benchmark runs to its end, prints its figures, and leaves nothing on the machine. The values are not tested.

mod calls;
mod functions;
mod help;
mod killed;
mod volume;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use crate::harness::leftovers::{self, RunMarkers};
use crate::harness::{FailedCommand, Farfork, programs, scratch, wait};
use crate::test::Test;

pub(crate) const TESTS: &[Test] = &[
    Test::alone("fork_prints_every_figure_and_cleans_up", fork),
    Test::alone("fork_compares_strategies", fork_compares_strategies),
    Test::alone("fork_writes_sequentially", fork_writes_sequentially),
    Test::alone("fork_measures_first_children", fork_measures_first_children),
    Test::alone("fork_refuses_sizes_above_free_memory", fork_refuses),
    Test::alone("fault_prints_figures_next_to_their_floors", fault),
    Test::alone("function_compares_results_and_cleans_up", functions::measures_functions),
    Test::alone("function_runs_each_of_its_nine_functions", functions::runs_all).long(),
    Test::alone("function_names_each_function_that_fails", functions::names_failures),
    Test::alone("warm_start_and_peak_name_the_function_that_fails", functions::names_failures_of_loads),
    Test::alone("stress_functions_runs_the_functions_that_do_not_fail", functions::stress_runs_the_others),
    Test::alone("a_killed_benchmark_leaves_nothing", killed::leaves_nothing),
    Test::alone("a_killed_volume_benchmark_leaves_nothing", killed::leaves_no_volume),
    Test::alone("the_next_benchmark_removes_what_a_killed_one_left", killed::next_removes_leftovers),
    Test::alone("a_killed_suite_ends_its_benchmark", killed::suite_ends_its_benchmark),
    Test::alone("stress_fork_reports_a_daemon_that_ends", killed::stress_reports_a_daemon),
    Test::alone("an_interrupt_ends_a_long_call_of_warm_start", killed::interrupt_ends_a_call),
    Test::alone("functions_may_have_long_payloads_and_odd_habits", functions::odd_habits),
    Test::alone("connect_prints_every_case_and_cleans_up", connect),
    Test::alone("churn_finds_no_wrong_page_and_cleans_up", churn),
    Test::alone("fanout_finds_no_wrong_result_and_cleans_up", fanout),
    Test::alone("peak_counts_children_of_each_workload_and_cleans_up", functions::counts_peak),
    Test::alone("stress_fork_checks_its_floor_and_cleans_up", stress_fork),
    Test::alone("rpc_times_calls_with_any_number_in_flight", calls::measures_times),
    Test::alone("stress_rpc_names_a_log_that_it_cannot_read", calls::names_unread_logs),
    Test::alone("tree_prints_every_figure_and_cleans_up", tree),
    Test::alone("volume_prints_every_figure_and_cleans_up", volume::prints_every_figure),
    Test::alone("volume_measures_gluster_if_it_is_installed", volume::measures_gluster),
    Test::alone("volume_refuses_sizes_above_free_memory", volume::refuses_large_sizes),
    Test::alone("pool_prints_every_figure_and_cleans_up", pool),
    Test::alone("warm_start_finds_the_best_concurrency_and_cleans_up", warm_start),
    Test::alone("warm_start_in_a_root_directory_does_not_change_it", warm_start_in_root),
    Test::alone("all_runs_benchmarks_and_reports_them", all),
    Test::alone("report_names_a_file_that_is_no_result", report_refuses),
    Test::alone("a_missing_peer_program_is_reported_with_a_remedy", missing_peer),
    Test::alone("help_explains_each_benchmark_and_test", help::explains_each_command),
    Test::alone("a_missing_bench_program_is_reported_with_a_remedy", help::missing_program),
];

/// Time limit of one benchmark on a busy machine.
const RUN_LIMIT: Duration = Duration::from_secs(240);

/// Longest wait until killed processes disappear from `/proc`.
const REMAINS_LIMIT: Duration = Duration::from_secs(60);

/// A figure that the fork benchmark prints for each size.
struct ExpectedFigure<'a> {
    /// The system that forks, in the JSON field `by`.
    by: &'a str,
    /// The measured operation.
    name: &'a str,
    /// The node of the child, relative to its seed.
    node: Option<&'a str>,
    pace: &'a str,
}

/// All figures that the fork benchmark prints for one size.
const FIGURES: [ExpectedFigure<'_>; 29] = [
    ExpectedFigure { by: "farfork", name: "checkpoint", node: None, pace: "back_to_back" },
    ExpectedFigure { by: "farfork", name: "checkpoint", node: None, pace: "idle" },
    ExpectedFigure { by: "farfork", name: "checkpoint_pause", node: None, pace: "back_to_back" },
    ExpectedFigure { by: "farfork", name: "checkpoint_pause", node: None, pace: "idle" },
    ExpectedFigure { by: "farfork", name: "pause", node: None, pace: "back_to_back" },
    ExpectedFigure { by: "farfork", name: "pause", node: None, pace: "idle" },
    ExpectedFigure { by: "farfork", name: "prepare", node: None, pace: "back_to_back" },
    ExpectedFigure { by: "farfork", name: "prepare", node: None, pace: "idle" },
    ExpectedFigure { by: "farfork", name: "prepare_on_node", node: None, pace: "back_to_back" },
    ExpectedFigure { by: "farfork", name: "prepare_on_node", node: None, pace: "idle" },
    ExpectedFigure { by: "farfork", name: "resume", node: Some("own"), pace: "back_to_back" },
    ExpectedFigure { by: "farfork", name: "resume", node: Some("own"), pace: "idle" },
    ExpectedFigure { by: "farfork", name: "resume", node: Some("other"), pace: "back_to_back" },
    ExpectedFigure { by: "farfork", name: "resume", node: Some("other"), pace: "idle" },
    ExpectedFigure { by: "farfork", name: "first_resume", node: Some("other"), pace: "back_to_back" },
    ExpectedFigure { by: "farfork", name: "resume_spoke", node: Some("own"), pace: "back_to_back" },
    ExpectedFigure { by: "farfork", name: "resume_spoke", node: Some("own"), pace: "idle" },
    ExpectedFigure { by: "farfork", name: "resume_spoke", node: Some("other"), pace: "back_to_back" },
    ExpectedFigure { by: "farfork", name: "resume_spoke", node: Some("other"), pace: "idle" },
    ExpectedFigure { by: "farfork", name: "resume_answer", node: Some("own"), pace: "back_to_back" },
    ExpectedFigure { by: "farfork", name: "resume_answer", node: Some("own"), pace: "idle" },
    ExpectedFigure { by: "farfork", name: "resume_answer", node: Some("other"), pace: "back_to_back" },
    ExpectedFigure { by: "farfork", name: "resume_answer", node: Some("other"), pace: "idle" },
    ExpectedFigure { by: "farfork", name: "execution", node: Some("own"), pace: "back_to_back" },
    ExpectedFigure { by: "farfork", name: "execution", node: Some("other"), pace: "back_to_back" },
    ExpectedFigure { by: "local_fork", name: "pause", node: None, pace: "back_to_back" },
    ExpectedFigure { by: "local_fork", name: "execution", node: None, pace: "back_to_back" },
    ExpectedFigure { by: "local_fork", name: "execution_writing", node: None, pace: "back_to_back" },
    ExpectedFigure { by: "link", name: "memory_copy", node: None, pace: "back_to_back" },
];

fn fork() {
    let samples = scratch::file("");
    let path = samples.path().to_str().expect("temporary names are text");
    let document = run(&["--mib", "1,4", "--runs", "2", "--samples", path]);
    assert_eq!((&document["benchmark"], &document["plan"]["order"]), (&"fork".into(), &"random".into()));
    let keys = keys_of(&document);
    let expected: BTreeSet<&str> = FORK_KEYS.into();
    assert_eq!(keys, expected);
    for mib in [1, 4] {
        for figure in &FIGURES {
            require_figure(&document, mib, figure);
        }
    }
    let lines = fs::read_to_string(samples.path()).expect("the samples were written");
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    // The raw copy over the link is a sample too, even if the benchmark rejected it.
    assert_eq!(lines.len(), 2 * 2 * (FIGURES.len() + 1));
}

/// The top-level keys of a document.
const FORK_KEYS: [&str; 11] = [
    "benchmark",
    "elapsed_s",
    "figures",
    "load_average",
    "machine",
    "notes",
    "plan",
    "reference",
    "section",
    "strategies",
    "version",
];

fn require_figure(document: &Value, mib: u64, expected: &ExpectedFigure<'_>) {
    let ExpectedFigure { by, name, node, pace } = *expected;
    let figures = document["figures"].as_array().expect("a list of figures");
    let is = |figure: &&Value| {
        let is = |key: &str, value: Value| figure[key] == value;
        is("mib", mib.into())
            && is("by", by.into())
            && is("figure", name.into())
            && is("node", node.into())
            && is("pace", pace.into())
    };
    let figure = figures.iter().find(is).unwrap_or_else(|| panic!("{mib} MiB: no {by} {name} {node:?} {pace}"));
    let number = |key: &str| figure[key].as_f64().unwrap_or_else(|| panic!("{key} is not a number: {figure}"));
    assert_eq!((figure["samples"].as_u64(), &figure["unit"]), (Some(2), &"ms".into()), "{figure}");
    let [p10, p50, p90] = ["p10", "p50", "p90"].map(number);
    assert!(p50 > 0.0 && p10 <= p50 && p50 <= p90, "{figure}");
    // Published resumes are those of first children.
    let resume = if document["plan"]["first"] == true { "resume" } else { "first_resume" };
    let is_compared = by == "farfork" && ["checkpoint", "prepare", resume, "execution"].contains(&name);
    assert_eq!(figure["reference"].is_number(), is_compared, "{figure}");
    assert_eq!(figure["below_reference"].is_boolean(), is_compared, "{figure}");
}

/// The strategies differ in the pages that the first child fetches, and that its node caches for the second child.
fn fork_compares_strategies() {
    let document = run(&["--mib", "4", "--runs", "1", "--strategies", "cow", "--strategies", "cow,cache"]);
    let strategies = document["strategies"].as_array().expect("a list of strategies");
    assert_eq!(strategies.len(), 2, "{document}");
    let count = |strategy: usize, child: &str, what: &str| {
        strategies[strategy][child][what].as_f64().unwrap_or_else(|| panic!("no {child} {what}: {document}"))
    };
    for strategy in [0, 1] {
        assert!(count(strategy, "first", "faults_missing") >= 1024.0, "{document}");
        assert!(count(strategy, "first", "network_bytes") >= 4e6, "{document}");
        assert!(count(strategy, "first", "touching_ms") > 0.0, "{document}");
    }
    assert!(count(0, "second", "faults_missing") >= 1024.0 && count(0, "second", "cached_bytes") == 0.0, "{document}");
    assert!(count(1, "second", "network_bytes") == 0.0 && count(1, "second", "cached_bytes") >= 4e6, "{document}");
}

fn fork_writes_sequentially() {
    let document = run(&["--mib", "3", "--runs", "1", "--write", "--sequential"]);
    assert_eq!((&document["plan"]["order"], &document["plan"]["access"]), (&"sequential".into(), &"write".into()));
}

/// Measures the first child of each seed, for which a node may have made a speculative zygote. The document's `plan`
/// repeats the options.
fn fork_measures_first_children() {
    for (option, told) in [("--foretold", [true, true, false]), ("--fresh", [true, false, true])] {
        let document = run(&["--mib", "1", "--runs", "2", "--first", option]);
        let plan = ["first", "foretold", "fresh"].map(|key| &document["plan"][key]);
        assert_eq!(plan, told.map(Value::from).each_ref(), "{option}");
        for (node, pace) in [("own", "back_to_back"), ("own", "idle"), ("other", "back_to_back"), ("other", "idle")] {
            let expected = ExpectedFigure { by: "farfork", name: "resume", node: Some(node), pace };
            require_figure(&document, 1, &expected);
        }
    }
}

fn fork_refuses() {
    let farfork = Farfork::at(Path::new("/nonexistent"));
    farfork.run_failing(&["bench", "fork", "--mib", "1048576"]).require_mentions(&[
        "1048576 MiB",
        "free memory",
        "--mib",
    ]);
}

fn connect() {
    let samples = scratch::file("");
    let path = samples.path().to_str().expect("temporary names are text");
    let arguments = ["--clients", "1,2", "--threads", "2", "--seconds", "0.1", "--runs", "1", "--samples", path];
    let document = run_benchmark("connect", &arguments);
    let cases = document["cases"].as_array().expect("a list of cases");
    let keys = |case: &Value| (case["clients"].as_u64(), case["authenticated"].as_bool(), case["encrypted"].as_bool());
    let found: BTreeSet<_> = cases.iter().map(keys).collect();
    let protections = [(false, false), (true, false), (true, true)];
    let expected =
        [1, 2].map(|clients| protections.map(|(proved, hidden)| (Some(clients), Some(proved), Some(hidden))));
    assert_eq!((found, cases.len()), (expected.into_iter().flatten().collect(), 6));
    for case in cases {
        let expected = (case["clients"].as_u64().map(|clients| clients * 2), Some(2), Some(1));
        assert_eq!((case["connections"].as_u64(), case["threads"].as_u64(), case["rails"].as_u64()), expected);
        let latency_us = &case["latency_us"];
        let positive = [&case["per_s"], &case["floor_per_s"], &latency_us["p50"], &latency_us["p99"]];
        assert!(positive.iter().all(|number| number.as_f64().is_some_and(|number| number > 0.0)), "{case}");
    }
    let lines = fs::read_to_string(samples.path()).expect("the samples were written");
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    // For each number of clients: one floor, and four figures with each protection.
    assert_eq!(lines.len(), 2 * (1 + 3 * 4));
}

/// Programs change memory while it is fetched. The benchmark fails if they compute a wrong result.
fn churn() {
    let document = run_benchmark("churn", &["--mib", "8", "--runs", "1"]);
    let figures = document["figures"].as_array().expect("a list of figures");
    let keys = |figure: &Value| (figure["deed"].to_string(), figure["node"].to_string());
    let found: BTreeSet<_> = figures.iter().map(keys).collect();
    assert_eq!((found.len(), figures.len()), (15, 15), "five operations, unforked and on both nodes: {document}");
    assert!(figures.iter().all(|figure| figure["unforked_ratio"].as_f64() > Some(0.0)), "{document}");
}

/// The benchmark fails if a result of a child is wrong.
fn fanout() {
    for network in ["shared", "host"] {
        let few = ["--children", "4", "--mib", "4", "--runs", "1", "--nodes", "1", "--net", network];
        let document = run_benchmark("fanout", &few);
        assert_eq!(document["plan"]["network"], network, "{document}");
    }
    let samples = scratch::file("");
    let path = samples.path().to_str().expect("temporary names are text");
    let document = run_benchmark("fanout", &["--children", "12", "--mib", "4", "--runs", "2", "--samples", path]);
    let figures = document["figures"].as_array().expect("a list of figures");
    let unified = !document["bare_container_refused"].is_string();
    assert_eq!(unified, fs::read_to_string("/proc/mounts").expect("a file").contains(" cgroup2 "), "{document}");
    let bare = usize::from(unified);
    assert_eq!(
        figures.len(),
        3 * 7 + bare * 4,
        "seven figures of each system; bare containers have no memory figures: {document}"
    );
    let of = |by: &str, name: &str| {
        let is = |figure: &&Value| figure["by"] == by && figure["figure"] == name;
        figures.iter().find(is).unwrap_or_else(|| panic!("no {by} {name} in {document}"))
    };
    for by in ["farfork", "local_fork_into_namespaces", "local_fork"] {
        assert_eq!(of(by, "result_ms")["samples"], 24, "{document}");
        for name in ["children_per_s", "first_result_ms", "answered_ms", "own_kib", "page_tables_kib", "memory_kib"] {
            assert!(of(by, name)["p50"].as_f64() > Some(0.0), "{by} {name}: {document}");
        }
    }
    for name in ["children_per_s", "first_result_ms", "result_ms", "answered_ms"].into_iter().filter(|_| unified) {
        assert!(of("bare_container", name)["p50"].as_f64() > Some(0.0), "{name}: {document}");
    }
    let lines = fs::read_to_string(samples.path()).expect("the samples were written");
    // Samples of each system: two times of each child; a rate and a first result of each round; for five children, two
    // parts of their memory and the sum.
    assert_eq!(lines.lines().count(), 3 * (2 * 24 + 2 * 2 + 3 * 5) + bare * (2 * 24 + 2 * 2));
}

/// Clients fork for a few seconds, and nothing is left. A minimum rate (`--floor`) that cannot be reached fails the run. If
/// a slow machine starts too few children, the test runs again for longer.
fn stress_fork() {
    let python = programs::python().display().to_string();
    let cases = [
        (&["fork", "--mib", "4"][..], "0.01", true),
        (&["functions", "helloworld", "--python", &python][..], "100000", false),
    ];
    for (test, floor, passes) in cases {
        let run = |seconds: u64| {
            let count = seconds.to_string();
            let arguments = ["--nodes", "2", "--clients", "1", "--seconds", &count, "--floor", floor, "--json"];
            let farfork = Farfork::at(Path::new("/nonexistent"));
            let ended = farfork.run_within(RUN_LIMIT, &[&["stress"], test, &arguments].concat());
            let said: Value = serde_json::from_str(&ended.stdout).unwrap_or_else(|_| panic!("{}", ended.stderr));
            let has_enough = said["outcome"]["children"].as_u64() > Some(2);
            (seconds, ended.status.success(), has_enough, said)
        };
        let (seconds, success, has_enough, said) =
            Some(run(2)).filter(|(_, _, enough, _)| *enough).unwrap_or_else(|| run(40));
        assert_eq!((&said["passed"], success), (&passes.into(), passes), "{said}");
        assert!(has_enough, "{said}");
        assert_eq!(said["outcome"]["intervals_per_s"].as_array().map(Vec::len), Some(seconds as usize), "{said}");
    }
}

/// Times a fault alone and during a stream, in farfork and in bare programs. The benchmark fails if a page is wrong.
fn fault() {
    let arguments = ["--runs", "1", "--faults", "20", "--idle-faults", "1", "--stream-mib", "512", "--streams", "0"];
    let document = run_benchmark("fault", &arguments);
    let figures = document["figures"].as_array().expect("a list of figures");
    for of in ["farfork", "beside_stream", "floor", "floor_beside_stream", "bare_touch", "bare_beside_stream"] {
        let figure = figures.iter().find(|figure| figure["of"] == of && figure["pace"] == "back_to_back");
        let figure = figure.unwrap_or_else(|| panic!("no {of}: {document}"));
        assert_eq!(figure["samples"], 20, "{figure}");
        assert!(figure["p99_floor_ratio"].as_f64() > Some(0.0), "{figure}");
    }
    let streams = ["stream_mib_per_s", "bare_stream_mib_per_s"].map(|stream| document[stream].as_f64() > Some(0.0));
    assert_eq!(streams, [true; 2], "both streams transferred pages: {document}");
}

/// Process trees of each size have a pause and its floors.
fn tree() {
    let arguments = ["--processes", "1,3", "--mib", "1", "--shared-mib", "1", "--runs", "2"];
    let document = run_benchmark("tree", &arguments);
    let figures = document["figures"].as_array().expect("a list of figures");
    let keys = |figure: &Value| (figure["processes"].as_u64(), figure["figure"].to_string());
    let found: BTreeSet<_> = figures.iter().map(keys).collect();
    assert_eq!((found.len(), figures.len()), (8, 8), "four figures of two sizes: {document}");
    assert!(figures.iter().all(|figure| figure["p50_ms"].as_f64() > Some(0.0)), "{document}");
    let pauses = figures.iter().filter(|figure| figure["figure"] == "pause");
    assert!(pauses.clone().count() == 2 && pauses.clone().all(|pause| pause["above_floor_ms"].is_number()));
}

/// Creates and pauses children at both paces, next to their floors. The benchmark fails if a result is wrong.
fn pool() {
    let document = run_benchmark("pool", &["--pool", "2", "--mib", "4", "--runs", "2"]);
    let figures = document["figures"].as_array().expect("a list of figures");
    let keys = |figure: &Value| ["figure", "by", "pace"].map(|key| figure[key].to_string());
    let found: BTreeSet<_> = figures.iter().map(keys).collect();
    // Three systems create: two figures at two paces, and a burst. Three systems pause: three figures at two paces.
    assert_eq!((found.len(), figures.len()), (3 * (2 * 2 + 1) + 3 * 3 * 2, 33), "{document}");
    for figure in figures {
        assert_eq!((figure["samples"].as_u64(), figure["p50_us"].as_f64() > Some(0.0)), (Some(2), true), "{figure}");
    }
    let of = |name: &str| {
        let is = |figure: &&Value| figure["figure"] == name && figure["by"] == "farfork" && figure["pace"] == "idle";
        figures.iter().find(is).and_then(|figure| figure["p90_us"].as_f64())
    };
    assert!(of("unpause") <= of("unpause_to_answer"), "the answer follows the unpause: {document}");
}

/// The number of concurrent requests increases until the throughput no longer increases. The benchmark fails if an answer
/// is wrong.
fn warm_start() {
    let samples = scratch::file("");
    let path = samples.path().to_str().expect("temporary names are text");
    let arguments = ["--seconds", "0.1", "--mib", "4", "--runs", "2", "--samples", path];
    let document = run_benchmark("warm-start", &arguments);
    let best = document["best"].as_array().expect("a list of the best figures");
    assert_eq!(best.len(), 4, "{document}");
    let figures = document["figures"].as_array().expect("a list of figures");
    let measured: BTreeSet<_> = figures.iter().map(|figure| figure["parallel"].as_u64()).collect();
    assert!(measured.len() >= 2 && measured.contains(&Some(1)) && measured.contains(&Some(2)), "{document}");
    assert_eq!(figures.len(), measured.len() * 12, "three figures of four methods: {document}");
    for best in best {
        assert!(measured.contains(&best["parallel"].as_u64()) && best["runs_per_s"].as_f64() > Some(0.0), "{best}");
    }
    let lines = fs::read_to_string(samples.path()).expect("the samples were written");
    assert_eq!(lines.lines().count(), figures.len() * 2);
    let python = programs::python().display().to_string();
    let arguments = ["helloworld", "--parallel", "3", "--seconds", "0.1", "--runs", "1", "--python", &python];
    let document = run_benchmark("warm-start", &arguments);
    let is_given = |figure: &Value| figure["parallel"].as_u64() == Some(3) && figure["workload"] == "helloworld";
    assert!(document["figures"].as_array().is_some_and(|figures| figures.iter().all(is_given)), "{document}");
}

/// The parents and their children have a root without a file of its own. A Python that it lacks is missing.
fn warm_start_in_root() {
    let root = scratch::Disk::of_mib(1);
    let path = root.path().to_str().expect("temporary names are text");
    let options = ["--root", path, "--parallel", "2", "--seconds", "0.1", "--runs", "1"];
    let document = run_benchmark("warm-start", &[&options[..], &["--mib", "4"]].concat());
    assert_eq!(document["figures"].as_array().map(Vec::len), Some(12), "three figures of four methods: {document}");
    assert!(fs::read_dir(root.path()).expect("a directory").next().is_none(), "the root has changed");

    let farfork = Farfork::at(Path::new("/nonexistent"));
    let require_error = |arguments: &[&str], mentioned: &[&str]| {
        let ended = farfork.run_within(RUN_LIMIT, &[&["bench", "warm-start"], arguments].concat());
        FailedCommand::of(ended).require_mentions(mentioned);
    };
    let missing = ["helloworld", "--python", "/no/python3"];
    require_error(&[&options[..], &missing].concat(), &["helloworld", "/no/python3"]);
    require_error(&["--root", "/nonexistent"], &["/nonexistent"]);
    std::os::unix::fs::symlink("/elsewhere", root.path().join("run")).expect("a link");
    require_error(&options, &[path, "/run", "symbolic link"]);
}

/// Runs two short benchmarks. The report contains both, with their commands. A comparison of the report with itself has
/// no differences.
fn all() {
    let directory = scratch::directory();
    let out = directory.path().join("results");
    let document = run_benchmark("all", &["--quick", "--only", "tree,rpc-checksum", "--out", &out.to_string_lossy()]);
    let runs = document["suite"]["runs"].as_array().expect("a list of runs");
    assert!(runs.len() == 2 && runs.iter().all(|run| run["failure"].is_null()), "{document}");
    let read = |name: &str| fs::read_to_string(out.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    let (html, markdown) = (read("report.html"), read("report.md"));
    for (name, benchmark) in [("tree", "bench tree --runs"), ("rpc-checksum", "bench rpc --checksum")] {
        let result: Value = serde_json::from_str(&read(&format!("{name}.json"))).expect("JSON");
        let command = result["section"]["context"]["command"].as_str().expect("a command");
        assert!(command.starts_with(&format!("farfork {benchmark} ")), "{command}");
        for (page, text) in [("report.html", &html), ("report.md", &markdown)] {
            assert!(text.contains(command), "{page} has no `{command}`: {text}");
        }
    }
    assert_eq!(
        read("rpc-checksum.jsonl").lines().count(),
        5 * 2 * 3,
        "five numbers of machines, two figures, three runs"
    );
    assert_eq!(read("tree.jsonl").lines().count(), 3 * 4 * 5, "four figures of three trees, five runs each");
    assert!(html.contains("<svg") && html.contains("Process trees") && !html.contains("<script"), "{html}");
    assert!(markdown.contains("| processes | fork() of each, ms |"), "{markdown}");
    let out = out.to_string_lossy();
    let compared = Farfork::at(Path::new("/nonexistent")).run(&["bench", "report", &out, "--against", &out]);
    compared.require_success();
    assert!(read("report.md").contains("(within noise)") && !read("report.md").contains("(slower)"));
}

fn report_refuses() {
    let directory = scratch::directory();
    let farfork = Farfork::at(Path::new("/nonexistent"));
    let path = directory.path().to_string_lossy();
    farfork.run_failing(&["bench", "report", &path]).require_mentions(&["has no results", "farfork bench all"]);
    fs::write(directory.path().join("notes.json"), "{\"a\": 1}").expect("a small file");
    farfork.run_failing(&["bench", "report", &path]).require_mentions(&["notes.json", "not a result", "move it"]);
    fs::write(directory.path().join("notes.json"), "{").expect("a small file");
    farfork.run_failing(&["bench", "report", &path]).require_mentions(&["notes.json is damaged", "remove it"]);
}

fn missing_peer() {
    let nowhere = scratch::directory();
    let mut command = Farfork::at(Path::new("/nonexistent")).command(&["bench", "fork", "--peer", "criu"]);
    let child = command.env("PATH", nowhere.path()).spawn().expect("the binary under test can be started");
    let ended = wait::wait_with_output(child, "farfork bench fork --peer criu", RUN_LIMIT);
    assert_eq!(ended.status.code(), Some(1), "{}", ended.stdout);
    assert!(ended.stderr.contains("criu is not installed") && ended.stderr.contains("apt-get"), "{}", ended.stderr);
}

/// Runs the fork benchmark. Requires that it leaves nothing on the machine.
fn run(arguments: &[&str]) -> Value {
    run_benchmark("fork", arguments)
}

fn run_benchmark(name: &str, arguments: &[&str]) -> Value {
    let arguments = [&["bench", name, "--json"], arguments].concat();
    let child = Farfork::at(Path::new("/nonexistent")).spawn(&arguments);
    let pid = child.id();
    let ended = wait::wait_with_output(child, &format!("farfork bench {name}"), RUN_LIMIT);
    ended.require_success();
    let marks = marks(pid);
    wait::wait_until("nothing is left of the benchmark", REMAINS_LIMIT, || {
        leftovers::find_leftovers(&marks).is_empty().then_some(())
    });
    let mounts = fs::read_to_string("/proc/self/mounts").expect("a list of mounts");
    assert!(!mounts.contains(&format!("/farfork-bench-{pid}-")), "{mounts}");
    serde_json::from_str(&ended.stdout).expect("JSON")
}

/// The markers by which leftovers of a benchmark's nodes are found.
fn marks(pid: u32) -> RunMarkers {
    let name = format!("farfork-bench-{pid}");
    let directories = fs::read_dir("/run").into_iter().flatten().flatten().map(|entry| entry.path());
    let is_ours = |path: &PathBuf| path.to_string_lossy().contains(&format!("{name}-"));
    let run_dir = directories.into_iter().find(is_ours).unwrap_or_else(|| format!("/run/{name}-").into());
    // The first cluster has the number 0. The prefix covers the namespaces of all clusters.
    let network_prefix = format!("ff-bench-{pid}-");
    RunMarkers { network_prefix, ..RunMarkers::of_local_cluster(&format!("bench-{pid}-0"), run_dir) }
}

fn keys_of(document: &Value) -> BTreeSet<&str> {
    document.as_object().expect("an object").keys().map(String::as_str).collect()
}
