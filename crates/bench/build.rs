//! Compiles the C++ programs of `src/workload` and `src/baseline` into static binaries that the program embeds, and the
//! messages of `src/peer/echo.proto`. So benchmarks need no compiler when they run, and all runs of one build measure the
//! same code.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Compiler flags. A static binary has the same memory map on every node.
const FLAGS: &[&str] = &["-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", "-static", "-Wl,--strip-all"];

const SOURCES: [&str; 15] = [
    "src/workload/micro.cpp",
    "src/baseline/link_copy.cpp",
    "src/baseline/echo.cpp",
    "src/baseline/connect.cpp",
    "src/workload/page_touch.cpp",
    "src/workload/memory_walk.cpp",
    "src/workload/churn.cpp",
    "src/workload/process_tree.cpp",
    "src/baseline/fault.cpp",
    "src/workload/sparse.cpp",
    "src/baseline/local_fanout.cpp",
    "src/baseline/container.cpp",
    "src/workload/warm_function.cpp",
    "src/workload/leveldb.cpp",
    "src/baseline/paused_forks.cpp",
];

/// The system libraries that a program is linked with.
const LIBRARIES: [(&str, &[&str]); 1] = [("leveldb.cpp", &["-lleveldb", "-lsnappy", "-pthread"])];

/// The sources of farfork's C library, for the program that requests checkpoints of itself.
const LIBRARY: [&str; 6] = ["callbacks.c", "checkpoint.c", "connection.c", "error.c", "pages.c", "processor.c"];

fn main() {
    programs();
    commit();
    let descriptors = protox::compile(["echo.proto"], ["src/peer"]).expect("echo.proto compiles");
    tonic_prost_build::configure().compile_fds(descriptors).expect("tonic accepts the descriptors of protox");
    println!("cargo::rerun-if-changed=src/peer/echo.proto");
}

fn programs() {
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    println!("cargo::rerun-if-env-changed=CXX");
    println!("cargo::rerun-if-changed=src/baseline/local_fanout.h");
    println!("cargo::rerun-if-changed=src/baseline/endpoint.h");
    println!("cargo::rerun-if-changed=src/workload/parent.h");
    println!("cargo::rerun-if-changed=src/workload/sparse.h");
    println!("cargo::rerun-if-changed=src/workload/warm_function.h");
    println!("cargo::rerun-if-changed=src/workload/waits.h");
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "g++".into());
    let library = library(&out);
    for source in SOURCES.map(PathBuf::from) {
        println!("cargo::rerun-if-changed={}", source.display());
        let name = source.file_stem().expect("a source has a name");
        let mut command = Command::new(&compiler);
        command.args(FLAGS).arg("-I../../include").arg("-o").arg(out.join(name)).arg(&source);
        // The linker takes only the members that a program calls. The programs of the floors call none.
        command
            .arg(&library)
            .args(LIBRARIES.iter().filter(|(program, _)| source.ends_with(program)).flat_map(|(_, of)| *of));
        run(&mut command, "g++, libleveldb-dev and libsnappy-dev");
    }
}

/// Sets `FARFORK_COMMIT`, the commit that results name. Outside a Git repository, it remains unset.
fn commit() {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).output().ok().filter(|output| output.status.success())?;
        String::from_utf8(output.stdout).ok().map(|text| text.trim().to_owned())
    };
    // Git appends to this log with each commit and each checkout.
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"]).filter(|log| Path::new(log).exists()) {
        println!("cargo::rerun-if-changed={log}");
    }
    if let Some(commit) = git(&["describe", "--always", "--dirty", "--abbrev=12"]) {
        println!("cargo::rustc-env=FARFORK_COMMIT={commit}");
    }
}

/// Builds farfork's C library as a static archive. Returns the archive's path.
fn library(out: &Path) -> PathBuf {
    println!("cargo::rerun-if-env-changed=CC");
    println!("cargo::rerun-if-changed=../program/c");
    println!("cargo::rerun-if-changed=../../include");
    let compiler = std::env::var("CC").unwrap_or_else(|_| "gcc".into());
    let archive = out.join("libfarfork.a");
    // ar(1) would keep the members of an older build.
    let _ = std::fs::remove_file(&archive);
    let mut members = Vec::new();
    for source in LIBRARY {
        let member = out.join(source).with_extension("o");
        let mut command = Command::new(&compiler);
        command.args(["-std=gnu11", "-O2", "-pthread", "-I../../include", "-c", "-o"]).arg(&member);
        run(command.arg(Path::new("../program/c").join(source)), "gcc");
        members.push(member);
    }
    run(Command::new("ar").arg("rcs").arg(&archive).args(members), "binutils");
    archive
}

/// Runs a compiler. `package` is the package to install if it is missing.
fn run(command: &mut Command, package: &str) {
    let output =
        command.output().unwrap_or_else(|error| panic!("{command:?} could not be started: {error}; install {package}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?} failed:\n{errors}");
}
