//! `farfork bench function` with functions of a user.

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::run_benchmark;
use crate::harness::{Farfork, programs, scratch};

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

/// Functions that fail, and parts of their errors.
const FAILING: [(&str, &str, [&str; 2]); 7] = [
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
const HANGING: [(&str, &str, [&str; 2]); 2] = [
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

/// Measures functions that fail, and one that does not.
fn require_errors(functions: &[(&str, &str, [&str; 2])], options: &[&str]) {
    let own = scratch::directory();
    let write = |(name, text, _): &(&str, &str, [&str; 2])| {
        let path = own.path().join(format!("{name}.py"));
        fs::write(&path, text).expect("a small file");
        path.display().to_string()
    };
    let files: Vec<String> = functions.iter().map(write).collect();
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
