//! `farfork bench function` with functions of a user.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::Value;

use super::{RUN_LIMIT, run_benchmark};
use crate::harness::{FailedCommand, Farfork, programs, scratch, wait};

/// Prints, forks, starts a shell and reads its input. It imports a module from the directory of its file.
const TRIANGLE: &str = "\
import os, sys
import sides

def area(payload):
    print('measuring', flush=True)
    os.system('echo a shell')
    if os.fork() == 0:
        return None
    os.wait()
    return sides.product(payload) / 2, sys.stdin.read()
";

pub(super) fn measures_functions() {
    let own = scratch::directory();
    let write = |name: &str, text: &str| fs::write(own.path().join(name), text).expect("a small file");
    write("triangle.py", TRIANGLE);
    write("sides.py", "def product(payload):\n    return payload['a'] * payload['b']\n");
    write("payload.json", "{\"a\": 3, \"b\": 4}");
    let path = |name: &str| own.path().join(name).display().to_string();
    let (triangle, payload) = (format!("{}:area", path("triangle.py")), format!("@{}", path("payload.json")));
    let python = programs::python().display().to_string();
    let functions = ["helloworld", "compression", "micro", &triangle];
    let options = ["--runs", "2", "--python", &python, "--payload", &payload];
    let document = run_benchmark("function", &[functions.as_slice(), &options].concat());
    let figures = document["figures"].as_array().expect("a list");
    for name in ["helloworld", "compression", "micro", "triangle.py:area"] {
        // Figures: resident memory, two calls of the parent, prepare, pause, and start and execution of three kinds of
        // child.
        let of_function = figures.iter().filter(|figure| figure["function"] == name);
        assert_eq!(of_function.count(), 11, "{name}: {document}");
    }
    assert!(figures.iter().all(|figure| figure["figure"].is_string()), "{document}");
    assert!(figures.iter().all(|figure| figure["p10"].as_f64() >= Some(0.0)), "{document}");
    assert_eq!(document["reference"].as_array().map(Vec::len), Some(3), "{document}");
    assert_eq!(document["failures"].as_array().map(Vec::len), Some(0), "{document}");
}

/// Some of the nine functions need packages from PyPI, which the first run installs.
pub(super) fn runs_all() {
    const FUNCTIONS: [&str; 9] =
        ["chameleon", "compression", "helloworld", "image", "json", "micro", "pagerank", "pyaes", "recognition"];
    let document = run_benchmark("function", &["--runs", "1"]);
    let figures = document["figures"].as_array().expect("a list");
    let measured: BTreeSet<&str> = figures.iter().filter_map(|figure| figure["function"].as_str()).collect();
    assert_eq!(measured, BTreeSet::from(FUNCTIONS), "{document}");
    assert_eq!(document["failures"].as_array().map(Vec::len), Some(0), "{document}");
}

/// The payload is longer than an argument of a program, and not ASCII. The functions use their streams in odd ways.
pub(super) fn odd_habits() {
    let own = scratch::directory();
    let write = |name: &str, text: &str| {
        let path = own.path().join(name);
        fs::write(&path, text).expect("a small file");
        path.display().to_string()
    };
    fs::create_dir(own.path().join("a:b")).expect("a directory");
    let length = write("a:b/length.py", "def handler(payload):\n    return len(payload['text'])\n");
    let silent = write("silent.py", "import sys\ndef handler(payload):\n    sys.stdout = None\n    return 1\n");
    let closing = write("closing.py", "import sys\ndef handler(payload):\n    sys.stdout.close()\n    return 1\n");
    let lazy = write("lazy.py", "def handler(payload):\n    return map(len, payload)\n");
    let payload = write("payload.json", &format!("{{\"text\": \"{}\"}}", "ü".repeat(100_000)));
    let (payload, python) = (format!("@{payload}"), programs::python().display().to_string());
    let options = ["--payload", &payload, "--python", &python];
    let peak = ["--nodes", "1", "--clients", "1", "--seconds", "1", "--zygotes", "off"];
    let document = run_benchmark("peak", &[&[length.as_str()], peak.as_slice(), &options].concat());
    assert_eq!(document["failures"].as_array().map(Vec::len), Some(0), "{document}");

    let functions = [length.as_str(), &silent, &closing, &lazy, "--runs", "1"];
    let arguments = [&["--json", "bench", "function"], functions.as_slice(), &options].concat();
    // Without UTF-8 as the encoding of files.
    let mut command = Farfork::at(Path::new("/nonexistent")).command(&arguments);
    command.env("LC_ALL", "C").env("PYTHONUTF8", "0").env("PYTHONCOERCECLOCALE", "0");
    let child = command.spawn().expect("the binary under test can be started");
    let ended = wait::wait_with_output(child, "farfork bench function", RUN_LIMIT);
    let document: Value = serde_json::from_str(&ended.stdout).unwrap_or_else(|_| panic!("{}", ended.stderr));
    let failures = document["failures"].as_array().expect("a list");
    assert_eq!(failures.len(), 1, "{document}");
    let error = failures[0]["error"].as_str().expect("an error");
    assert!(error.contains(&lazy) && error.contains("it returned a map"), "{error}");
}

/// Name and text of a function, and parts of its error.
type FailingFunction<'a> = (&'a str, &'a str, [&'a str; 2]);

/// Functions that fail, and parts of their errors.
const FAILING: [FailingFunction<'_>; 7] = [
    (
        "varying",
        "import time\ndef handler(payload):\n    return time.time_ns()\n",
        ["two calls return different results", "repr()"],
    ),
    ("importing", "import nothing_like_this\n", ["loading it: ModuleNotFoundError", "line 1"]),
    ("unnamed", "def work(payload):\n    pass\n", ["loading it", "no attribute 'handler'"]),
    (
        "exiting",
        "import sys\ndef handler(payload):\n    sys.exit(3)\n",
        ["the parent's first call: SystemExit: 3", "line 3"],
    ),
    (
        "ending",
        "import os\ndef handler(payload):\n    os._exit(3)\n",
        ["loading or calling it ended the process", "exit status: 3"],
    ),
    (
        "raising_in_child",
        "import os\ndef handler(payload):\n    if os.path.exists('/run/farfork/payload'):\n        1 / 0\n",
        ["a call in a child of farfork: ZeroDivisionError", "line 4"],
    ),
    (
        "aborting_in_child",
        "import os\ndef handler(payload):\n    if os.path.exists('/run/farfork/payload'):\n        os.abort()\n",
        ["a call in a child of farfork ended the process", "signal 6 killed it"],
    ),
];

/// Functions that never return, and parts of their errors.
const HANGING: [FailingFunction<'_>; 2] = [
    (
        "hanging",
        "import time\ndef handler(payload):\n    time.sleep(600)\n",
        ["loading or calling it took longer than 5s", "--timeout"],
    ),
    (
        "hanging_in_fork",
        "import os, time\nfirst = os.getpid()\ndef handler(payload):\n    if os.getpid() != first:\n        time.sleep(600)\n",
        ["a call in a child of os.fork(): it did not return within 5 s", "--timeout"],
    ),
];

/// The error of a function names its file and cause. A function that fails does not discard the figures of the others.
pub(super) fn names_failures() {
    require_errors(&FAILING, &[]);
    // Only functions that hang have a short time limit: a busy machine may take long to call the others.
    require_errors(&HANGING, &["--timeout", "5s"]);
}

/// Writes the files of functions. Returns their paths.
fn write_functions(directory: &Path, functions: &[FailingFunction<'_>]) -> Vec<String> {
    let write = |(name, text, _): &FailingFunction<'_>| {
        let path = directory.join(format!("{name}.py"));
        fs::write(&path, text).expect("a small file");
        path.display().to_string()
    };
    functions.iter().map(write).collect()
}

/// Functions whose calls in children fail, and parts of their errors.
const FAILING_IN_CHILDREN: [FailingFunction<'_>; 2] = [
    (
        "raising_in_child",
        "import os\ndef handler(payload):\n    if os.path.exists('/run/farfork/payload'):\n        1 / 0\n",
        ["a call in a child of farfork: ZeroDivisionError", "line 4"],
    ),
    (
        "aborting_in_child",
        "import os\ndef handler(payload):\n    if os.path.exists('/run/farfork/payload'):\n        os.abort()\n",
        ["a call in a child of farfork", "ended the process"],
    ),
];

/// A function whose calls in children of os.fork() fail.
const FAILING_IN_LOCAL_FORKS: FailingFunction<'_> = (
    "raising_in_fork",
    "import os\nfirst = os.getpid()\ndef handler(payload):\n    if os.getpid() != first:\n        [][3]\n",
    ["a call in a child of os.fork(): IndexError", "line 5"],
);

/// Benchmarks of loads name the function, the call and the line of an error, too.
pub(super) fn names_failures_of_loads() {
    let own = scratch::directory();
    let python = programs::python().display().to_string();
    let farfork = Farfork::at(Path::new("/nonexistent"));
    let require_error = |(name, text, causes): FailingFunction<'_>, options: &[&str]| {
        let file = write_functions(own.path(), &[(name, text, causes)]).remove(0);
        let arguments = [&["bench"], options, &[&file, "--python", &python]].concat();
        let ended = farfork.run_within(RUN_LIMIT, &arguments);
        FailedCommand::of(ended).require_mentions(&[&[file.as_str()], causes.as_slice()].concat());
    };
    let warm_start = ["warm-start", "--parallel", "1", "--seconds", "0.1", "--runs", "1"];
    let peak = ["peak", "--nodes", "1", "--clients", "1", "--seconds", "1", "--zygotes", "off"];
    for function in FAILING_IN_CHILDREN {
        require_error(function, &warm_start);
        require_error(function, &peak);
    }
    require_error(FAILING_IN_LOCAL_FORKS, &peak);
    // The floor of paused forks of functions needs the freezer of a control group of version 2.
    if fs::read_to_string("/proc/mounts").expect("a file").contains(" cgroup2 ") {
        require_error(FAILING_IN_LOCAL_FORKS, &warm_start);
    }
    for (options, figures) in [(warm_start.as_slice(), "runs_per_s"), (peak.as_slice(), "client_per_s")] {
        require_figures_of_others(own.path(), options, figures);
    }
}

/// A benchmark of functions that fail reports their errors, and the figures of the function that does not.
fn require_figures_of_others(directory: &Path, options: &[&str], figure: &str) {
    let files = write_functions(directory, &FAILING_IN_CHILDREN);
    let python = programs::python().display().to_string();
    let functions = [&files[0], "helloworld", &files[1]];
    let arguments = [&["--json", "bench"], options, &functions, &["--python", &python]].concat();
    let ended = Farfork::at(Path::new("/nonexistent")).run_within(RUN_LIMIT, &arguments);
    assert_eq!(ended.status.code(), Some(1), "{}{}", ended.stderr, ended.stdout);
    let document: Value = serde_json::from_str(&ended.stdout).expect("JSON");
    let figures: Vec<&Value> = document["figures"].as_array().expect("a list").iter().collect();
    let is_of_helloworld = |of: &&&Value| of["figure"] == figure && of.to_string().contains("\"helloworld\"");
    assert!(figures.iter().any(|of| is_of_helloworld(&of)), "{document}");
    assert!(!figures.iter().any(|of| of.to_string().contains("_in_child")), "{document}");
    let failures = document["failures"].as_array().expect("a list");
    let errors: Vec<_> = failures.iter().map(|failure| failure["error"].as_str().expect("an error")).collect();
    assert!(errors.len() == 2 && errors.iter().zip(&files).all(|(error, file)| error.contains(file)), "{document}");
}

/// Two functions fail, one before and one after its nodes have started. The other function still runs.
pub(super) fn stress_runs_the_others() {
    let own = scratch::directory();
    let functions = [FAILING[1], FAILING_IN_CHILDREN[0]];
    let files = write_functions(own.path(), &functions);
    let python = programs::python().display().to_string();
    let mut arguments = vec!["stress", "functions", &files[0], "helloworld", &files[1], "--python", &python];
    arguments.extend(["--nodes", "1", "--clients", "1", "--seconds", "2", "--floor", "0.01"]);
    let run = |options: &[&str]| {
        let ended =
            Farfork::at(Path::new("/nonexistent")).run_within(RUN_LIMIT, &[arguments.as_slice(), options].concat());
        assert_eq!(ended.status.code(), Some(1), "{}{}", ended.stderr, ended.stdout);
        ended.stdout
    };
    let document: Value = serde_json::from_str(&run(&["--json"])).expect("JSON");
    let runs = document["runs"].as_array().expect("a list of runs");
    assert_eq!(runs.len(), 1, "{document}");
    assert_eq!(runs[0]["plan"]["workload"]["function"]["source"]["name"], "helloworld", "{document}");
    let failures = document["failures"].as_array().expect("a list of failures");
    assert_eq!(failures.len(), 2, "{document}");
    let text = run(&[]);
    let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("Not measured: ")).collect();
    assert_eq!(lines.len(), 2, "{text}");
    for (((failure, line), file), (.., causes)) in failures.iter().zip(lines).zip(&files).zip(functions) {
        let error = failure["error"].as_str().expect("an error");
        for part in [file.as_str()].into_iter().chain(causes) {
            assert!(error.contains(part) && line.contains(part), "`{part}` is not in: {error} {line}");
        }
    }
}

/// Measures functions that fail, and one that does not.
fn require_errors(functions: &[FailingFunction<'_>], options: &[&str]) {
    let own = scratch::directory();
    let files = write_functions(own.path(), functions);
    let python = programs::python().display().to_string();
    let mut arguments = vec!["--json", "bench", "function", "helloworld", "--runs", "1", "--python", &python];
    arguments.extend(options);
    arguments.extend(files.iter().map(String::as_str));
    let ended = Farfork::at(Path::new("/nonexistent")).run(&arguments);
    assert_eq!(ended.status.code(), Some(1), "{}{}", ended.stderr, ended.stdout);
    let document: Value = serde_json::from_str(&ended.stdout).expect("JSON");
    let of_helloworld = document["figures"].as_array().expect("a list").iter();
    assert_eq!(of_helloworld.filter(|figure| figure["function"] == "helloworld").count(), 11, "{document}");
    let failures = document["failures"].as_array().expect("a list");
    assert_eq!(failures.len(), functions.len(), "{document}");
    for ((failure, file), (.., causes)) in failures.iter().zip(&files).zip(functions) {
        let error = failure["error"].as_str().expect("an error");
        for part in [file.as_str()].into_iter().chain(causes.iter().copied()) {
            assert!(error.contains(part), "`{part}` is not in: {error}");
        }
    }
}

/// Runs with and without zygotes. Each run counts the children of every second and of every client.
pub(super) fn counts_peak() {
    let python = programs::python().display().to_string();
    let arguments = ["helloworld", "--nodes", "1", "--clients", "2", "--seconds", "3", "--python", &python];
    let document = run_benchmark("peak", &arguments);
    let runs = document["runs"].as_array().expect("a list of runs");
    let names: Vec<_> = runs.iter().map(|run| run["case"]["workload"].as_str().expect("a name")).collect();
    assert_eq!(names, ["helloworld"; 2], "{document}");
    for run in runs {
        assert_eq!(run["intervals_per_s"].as_array().map(Vec::len), Some(3), "{document}");
    }
    let figures = document["figures"].as_array().expect("a list of figures");
    let of_clients = figures.iter().filter(|figure| figure["figure"] == "client_per_s");
    let has_samples = |figure: &Value| figure["samples"] == 2 && figure["p50"].as_f64() > Some(0.0);
    assert!(of_clients.clone().count() == 2 && of_clients.clone().all(has_samples), "{document}");
    let floors = figures.iter().filter(|figure| figure["figure"] == "local_fork_per_s").count();
    assert_eq!(floors, 2, "functions have a floor: {document}");
}
