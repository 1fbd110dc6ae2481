//! `Program`: the test programs. Programs in C, C++ and Go are compiled into the build directory, again after each change.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;
use std::time::Duration;

use farfork_terminal::cache_dir::find_cache_dir;

use super::wait;

/// Time limit of a compilation. The first Go build also compiles the standard library.
const COMPILE_LIMIT: Duration = Duration::from_secs(180);

/// A program that can be forked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Program {
    /// C, static, with a thread in each kind of wait. Arguments: memory in MiB, and `spin` for a thread that spins.
    Waits,
    /// C++, dynamic, worker threads.
    Threads,
    /// Go.
    Goroutines,
    /// Go, with a heap that grows and shrinks in children.
    Heap,
    /// CPython with NumPy.
    Arrays,
    /// A program of `programs/resources` that checks one kernel resource, by name.
    Resource(&'static str),
    /// A program of `programs/situations` for one situation of a test, by name.
    Situation(&'static str),
    /// A library of `programs/preloads` for LD_PRELOAD, by name.
    Preload(&'static str),
    /// C. Its resources follow from a seed. Arguments: the seed and a directory.
    Random,
    /// C. Named actions make its state. Arguments: `actions`, `coverage`, or `run` with a seed, a directory and
    /// actions.
    Calls,
    /// A realistic program, by file name. The extension selects the language.
    Real(&'static str),
    /// A program of `tests/resources/` at the repository's root, by name. Each checks one part of a process's state.
    ProcessState(&'static str),
}

impl Program {
    /// Returns a command that starts the program.
    pub(crate) fn command(self) -> Command {
        let (interpreter, script) = match self {
            Self::Arrays => (python(), "parents/arrays.py".to_owned()),
            Self::Real(name) if name.ends_with(".py") => (python(), format!("real/{name}")),
            Self::Real(name) if name.ends_with(".sh") => ("bash".into(), format!("real/{name}")),
            Self::Real(name) if name.ends_with(".js") => ("node".into(), format!("real/{name}")),
            _ => return Command::new(self.binary()),
        };
        let mut command = Command::new(interpreter);
        command.arg(sources().join(script));
        command
    }

    /// Returns the path of the executable. Compiles it if it is older than its sources.
    fn binary(self) -> PathBuf {
        let (source, compiler): (String, &[&str]) = match self {
            Self::Waits => ("parents/waits.c".into(), &["gcc", "-static"]),
            Self::Threads => ("parents/threads.cpp".into(), &["g++", "-std=c++17"]),
            Self::Goroutines => ("parents/goroutines.go".into(), &["go", "build"]),
            Self::Heap => ("parents/heap.go".into(), &["go", "build"]),
            Self::Arrays => unreachable!("Python is not compiled"),
            Self::Real(name) if name.ends_with(".go") => (format!("real/{name}"), &["go", "build"]),
            Self::Real(name) => (format!("real/{name}"), &["g++", "-std=c++17", "-fopenmp"]),
            Self::Resource(name) => (format!("resources/{name}.c"), &["gcc"]),
            Self::Preload(name) => (format!("preloads/{name}.c"), &["gcc", "-shared", "-fPIC"]),
            Self::Random => ("random/process.c".into(), &["gcc"]),
            Self::Calls => ("random/calls.c".into(), &["gcc"]),
            Self::Situation(name) => (format!("situations/{name}.c"), &["gcc"]),
            Self::ProcessState(name) => (format!("{PROCESS_STATE_SOURCES}/{name}.c"), &["gcc"]),
        };
        let source = sources().join(source);
        let name = source.file_stem().expect("a source has a name");
        let binary =
            if matches!(self, Self::ProcessState(_)) { process_state_dir().join(name) } else { build_dir().join(name) };
        let mut parts = headers_next_to(&source);
        parts.extend([
            source.clone(),
            sources().join("forked.h"),
            sources().join(PROCESS_STATE_SOURCES).join("huge_setting.h"),
        ]);
        // Tests run in parallel: without the lock, a second compilation could replace a running binary.
        let lock = fs::File::create(binary.with_extension("lock")).expect("the build's directory can be written");
        lock.lock().expect("a lock on a local file");
        if !is_newer(&binary, &parts) {
            compile(compiler, &source, &binary);
        }
        binary
    }
}

/// Returns a Python with NumPy: `FARFORK_PYTHON`, or the environment that scripts/setup.sh made.
pub(crate) fn python() -> PathBuf {
    let from_environment = std::env::var_os("FARFORK_PYTHON").map(PathBuf::from);
    let found = from_environment.or_else(|| Some(find_cache_dir()?.join("python/bin/python3")));
    found.filter(|python| python.exists()).expect("no Python with NumPy: run scripts/setup.sh")
}

/// The directory `tests/programs` with the sources of the programs.
pub(crate) fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs")
}

/// Path from `sources()` to the programs in `tests/resources/` at the repository's root.
const PROCESS_STATE_SOURCES: &str = "../../../../tests/resources";

/// Returns a separate directory for these binaries: some have the same names as other programs.
fn process_state_dir() -> PathBuf {
    let dir = build_dir().join("whole");
    fs::create_dir_all(&dir).expect("the build's directory can be written");
    dir
}

fn build_dir() -> &'static Path {
    static DIR: LazyLock<PathBuf> = LazyLock::new(|| {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("programs");
        fs::create_dir_all(&dir).expect("the build's directory can be written");
        dir
    });
    &DIR
}

/// Returns the headers in the directory of a source. All programs of the directory are compiled again if one changes.
fn headers_next_to(source: &Path) -> Vec<PathBuf> {
    let folder = fs::read_dir(source.parent().expect("a source is in a folder")).expect("the sources can be read");
    let all = folder.map(|entry| entry.expect("the sources can be read").path());
    all.filter(|path| path.extension().is_some_and(|extension| extension == "h")).collect()
}

fn is_newer(binary: &Path, sources: &[PathBuf]) -> bool {
    let time = |path: &Path| fs::metadata(path).and_then(|m| m.modified()).ok();
    let built = time(binary);
    built.is_some() && sources.iter().all(|source| time(source) < built)
}

/// Copies a program by cp(1). If this process opened the new file for writing, a process that another test starts at that
/// time would inherit the descriptor. Until that process calls execve(2), the new program would fail with ETXTBSY.
pub(crate) fn copy(program: impl AsRef<Path>, to: &Path) {
    let copied = Command::new("cp").arg(program.as_ref()).arg(to).status().expect("cp(1) can be started");
    assert!(copied.success(), "cp(1): {copied}");
}

/// Compiles to a temporary name and then renames the file, so that an incomplete binary never runs.
fn compile(compiler: &[&str], source: &Path, binary: &Path) {
    let unfinished = binary.with_extension(format!("unfinished-{}", std::process::id()));
    let mut command = Command::new(compiler[0]);
    command.args(&compiler[1..]);
    command.arg("-o").arg(&unfinished);
    if compiler[0] == "go" {
        command.arg(source).env("GO111MODULE", "off").env("GOTOOLCHAIN", "local");
    } else {
        command.args(["-O2", "-g", "-Wall", "-Wextra", "-Werror", "-pthread"]).arg(source).arg("-lm");
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child =
        command.spawn().unwrap_or_else(|e| panic!("{} cannot be started ({e}): run scripts/setup.sh", compiler[0]));
    let ended = wait::wait_with_output(child, &format!("compiling {}", source.display()), COMPILE_LIMIT);
    assert!(ended.status.success(), "{} does not compile:\n{}{}", source.display(), ended.stdout, ended.stderr);
    fs::rename(&unfinished, binary).expect("a rename within the build's directory");
}
