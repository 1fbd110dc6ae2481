//! The functions that `farfork bench function` measures: Python files with a `handler(payload)`. Nine are embedded,
//! modelled on those of the MITOSIS artifact. A user may name a file of their own. `runner.py` runs them.

pub(crate) mod environment;
pub(crate) mod failures;

use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use std::{env, fmt};

use humantime::format_duration;
use rustix::process::Signal;
use serde::Serialize;

use super::child_task::ChildTask;
use super::parent_root::ParentRoot;
use crate::error::{BenchError, ChildEnd};
use crate::machine::Machine;
use crate::machine::program::{RunningProgram, parse_numbers};

/// The program's name in errors.
const PROGRAM: &str = "function";

/// The runner's file name and text.
const RUNNER: (&str, &str) = ("runner.py", include_str!("runner.py"));

/// Time limit for the start of a child on a busy machine.
const CHILD_START_LIMIT: Duration = Duration::from_secs(30);

/// The file with the payload of the parent's calls.
const PAYLOAD_FILE: &str = "payload.json";

/// The handler of embedded functions, and the default for a user's file.
const HANDLER: &str = "handler";

/// Name, file name and text of each embedded function.
const EMBEDDED: [(&str, &str, &str); 9] = [
    ("helloworld", "helloworld.py", include_str!("helloworld.py")),
    ("json", "json_document.py", include_str!("json_document.py")),
    ("compression", "compression.py", include_str!("compression.py")),
    ("pyaes", "pyaes_text.py", include_str!("pyaes_text.py")),
    ("chameleon", "chameleon_table.py", include_str!("chameleon_table.py")),
    ("image", "image.py", include_str!("image.py")),
    ("pagerank", "pagerank.py", include_str!("pagerank.py")),
    ("recognition", "recognition.py", include_str!("recognition.py")),
    ("micro", "micro.py", include_str!("micro.py")),
];

/// A function to measure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct FunctionSource {
    /// The name of the function in the summary: `json` for an embedded function, `mine.py:work` for a user's.
    pub(crate) name: String,
    /// The user's file; `None` for an embedded function.
    pub(crate) file: Option<PathBuf>,
    /// The name of the handler in the file.
    pub(crate) handler: String,
}

impl FunctionSource {
    /// All embedded functions.
    pub(crate) fn embedded() -> Vec<Self> {
        EMBEDDED.iter().map(|(name, ..)| Self::from_embedded(name)).collect()
    }

    /// Parses an embedded function's name, `FILE.py` or `FILE.py:HANDLER`.
    ///
    /// # Errors
    /// The text has another form. The message says which forms are valid.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        if EMBEDDED.iter().any(|(name, ..)| *name == text) {
            return Ok(Self::from_embedded(text));
        }
        // A path may have colons, and no handler ends with `.py`.
        let named = text.rsplit_once(':').filter(|(_, handler)| !handler.ends_with(".py"));
        let (file, handler) = named.unwrap_or((text, HANDLER));
        let file = PathBuf::from(file);
        if file.extension().is_none_or(|extension| extension != "py") || handler.is_empty() {
            let names: Vec<&str> = EMBEDDED.iter().map(|(name, ..)| *name).collect();
            return Err(format!("name FILE.py or FILE.py:HANDLER, or one of {}", names.join(", ")));
        }
        let path = file.canonicalize().map_err(|error| format!("{}: {error}", file.display()))?;
        // Summaries and the arguments of clients have the path as text.
        if path.to_str().is_none() {
            return Err(format!("{}: its path is not UTF-8; rename it", path.display()));
        }
        let file_name = path.file_name().unwrap_or_default().to_string_lossy();
        Ok(Self { name: format!("{file_name}:{handler}"), file: Some(path), handler: handler.to_owned() })
    }

    /// The distinct functions of a command line, or all embedded functions if it names none.
    pub(crate) fn distinct_or_embedded(named: Vec<Self>) -> Vec<Self> {
        if named.is_empty() { Self::embedded() } else { Self::make_distinct(named) }
    }

    /// Removes repeated functions. Different functions with one name are named by their whole path.
    pub(crate) fn make_distinct(sources: Vec<Self>) -> Vec<Self> {
        let mut distinct: Vec<Self> = Vec::new();
        for source in sources {
            if !distinct.contains(&source) {
                distinct.push(source);
            }
        }
        let names: Vec<String> = distinct.iter().map(|source| source.name.clone()).collect();
        for source in &mut distinct {
            if names.iter().filter(|name| **name == source.name).count() > 1 {
                source.name = source.to_string();
            }
        }
        distinct
    }

    fn from_embedded(name: &str) -> Self {
        Self { name: name.to_owned(), file: None, handler: HANDLER.to_owned() }
    }

    /// Returns the path of the function's file. Writes the file of an embedded function first.
    fn install(&self, machine: &dyn Machine) -> Result<PathBuf, BenchError> {
        if let Some(file) = &self.file {
            return Ok(file.clone());
        }
        let embedded = EMBEDDED.iter().find(|(name, ..)| *name == self.name);
        let (_, file, text) = embedded.expect("a function without a file is embedded");
        machine.write_file(file, "644", text.as_bytes())
    }
}

impl fmt::Display for FunctionSource {
    fn fmt(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.file {
            Some(file) => write!(text, "{}:{}", file.display(), self.handler),
            None => text.write_str(&self.name),
        }
    }
}

/// How the processes that run functions are started.
#[derive(Debug, Clone)]
pub(crate) struct FunctionOptions {
    /// The Python; `None` for `python3` for a user's file, and an environment with packages for embedded functions.
    python: Option<PathBuf>,
    /// Time limit for loading a file, and for each call.
    call_limit: Duration,
}

impl Default for FunctionOptions {
    fn default() -> Self {
        Self { python: None, call_limit: Duration::from_secs(60) }
    }
}

impl FunctionOptions {
    /// The options with this Python and this time limit, if they are given.
    ///
    /// # Errors
    /// The program does not run Python code.
    pub(crate) fn new(python: Option<PathBuf>, call_limit: Option<Duration>) -> Result<Self, BenchError> {
        let usual = Self::default();
        match python {
            Some(path) if !is_python(&path) => Err(BenchError::NoPython { path }),
            python => Ok(Self { python, call_limit: call_limit.unwrap_or(usual.call_limit) }),
        }
    }

    /// As [`Self::new`], for parents with a root of their own, in which the Python is.
    pub(crate) fn in_root(python: Option<PathBuf>, call_limit: Option<Duration>) -> Self {
        Self { python, call_limit: call_limit.unwrap_or(Self::default().call_limit) }
    }

    /// The directories of this machine with the Python of a function; none if the Python is the one of another root.
    pub(crate) fn python_prefixes(&self, source: &FunctionSource) -> Result<Vec<PathBuf>, BenchError> {
        const PRINT_PREFIXES: &str = "import sys; print(sys.prefix, sys.base_prefix, sep='\\n')";
        if self.python.is_some() || source.file.is_some() {
            return Ok(Vec::new());
        }
        let path = environment::find_or_install()?;
        match Command::new(&path).args(["-c", PRINT_PREFIXES]).output() {
            Ok(output) if output.status.success() => {
                Ok(String::from_utf8_lossy(&output.stdout).lines().map(PathBuf::from).collect())
            }
            _ => Err(BenchError::NoPython { path }),
        }
    }

    /// Whether the start of a function first installs its packages.
    pub(crate) fn must_install(&self, source: &FunctionSource) -> bool {
        self.python.is_none() && source.file.is_none() && !environment::is_installed()
    }

    fn python_of(&self, source: &FunctionSource) -> Result<PathBuf, BenchError> {
        match (&self.python, &source.file) {
            (Some(python), _) => Ok(python.clone()),
            (None, Some(_)) => Ok("python3".into()),
            (None, None) => environment::find_or_install(),
        }
    }
}

/// Whether the program runs Python code.
fn is_python(program: &Path) -> bool {
    let output = Command::new(program).args(["-c", "print(6 * 7)"]).output();
    output.is_ok_and(|output| output.stdout.trim_ascii() == b"42")
}

/// One call of a function in a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FunctionCall {
    /// Time of the child's first instruction, in ns: since 1970, or for a local fork since the call of os.fork().
    pub(crate) started_ns: i64,
    /// Duration of the handler, in ns.
    pub(crate) execution_ns: i64,
}

/// A parent that has called its function twice, and waits. It is killed when this value is dropped.
#[derive(Debug)]
pub(crate) struct FunctionParent {
    /// The function in errors.
    label: String,
    call_limit: Duration,
    program: RunningProgram,
    pub(crate) first_call_ns: i64,
    pub(crate) warm_call_ns: i64,
    pub(crate) resident_kib: i64,
    /// A digest of the function's result.
    digest: i64,
}

impl FunctionParent {
    /// Writes the runner and the function to a machine, and starts the parent there. The parent of a user's function has the
    /// working directory of this process, and a parent with a root of its own the directory `/`.
    ///
    /// # Errors
    /// The function cannot be loaded or called, or its results differ between calls, so children could not be checked.
    pub(crate) fn start(
        source: &FunctionSource,
        options: &FunctionOptions,
        machine: &dyn Machine,
        payload: &str,
        root: Option<&ParentRoot>,
    ) -> Result<Self, BenchError> {
        let runner = machine.write_file(RUNNER.0, "644", RUNNER.1.as_bytes())?;
        let payload = machine.write_file(PAYLOAD_FILE, "644", payload.as_bytes())?;
        let mut command = Command::new(options.python_of(source)?);
        command.arg(runner).arg(source.install(machine)?).arg(&source.handler).arg(payload);
        command.arg(options.call_limit.as_secs_f64().to_string());
        command.env("FARFORK_FUNCTION_DIR", machine.scratch()).env("PYTHONDONTWRITEBYTECODE", "1");
        // Use no OpenMP threads: a child of os.fork() lacks them, and would wait for them forever.
        command.env("OMP_NUM_THREADS", "1").env("OPENBLAS_NUM_THREADS", "1");
        match (root, &source.file, env::current_dir()) {
            (Some(root), ..) => command = root.wrap(&command),
            (None, Some(_), Ok(current)) => _ = command.current_dir(current),
            _ => {}
        }
        let (label, call_limit) = (source.to_string(), options.call_limit);
        // The process limits itself, but may stop, or block the signal. It loads a file and calls the function twice.
        let mut program = machine.start(PROGRAM, &command)?.killing_forks().with_answer_limit(call_limit * 4);
        let answer = program.read_answer("ready").map_err(|error| function_failure(&label, Some(call_limit), error));
        let [first_call_ns, warm_call_ns, resident_kib, digest, repeated] = answer?;
        if digest != repeated {
            return Err(BenchError::UnsteadyFunction { function: label });
        }
        Ok(Self { label, call_limit, program, first_call_ns, warm_call_ns, resident_kib, digest })
    }

    /// The process id of the parent.
    pub(crate) fn pid(&self) -> u32 {
        self.program.pid()
    }

    /// Makes the parent call the function in a child of os.fork(). The start time is relative to the call of os.fork().
    pub(crate) fn call_in_local_fork(&mut self) -> Result<FunctionCall, BenchError> {
        let failed = |error| function_failure(&self.label, Some(self.call_limit), error);
        let answer = self.program.request(b'l', "forked").map_err(failed)?;
        check_call(answer, &self.label, "os.fork()", self.digest)
    }

    /// Time limit for the answer of a child of farfork. The child limits its call itself, but may be stopped, or block the
    /// signal.
    pub(crate) fn answer_limit(&self) -> Duration {
        self.call_limit * 2 + CHILD_START_LIMIT
    }

    /// Waits for a child of farfork that calls the function.
    ///
    /// # Errors
    /// The child does not end in time, or not successfully.
    pub(crate) async fn await_child<T>(
        &self,
        child: impl Future<Output = Result<T, BenchError>>,
    ) -> Result<T, BenchError> {
        let limit = self.answer_limit();
        let no_answer = |_| BenchError::NoAnswer { program: PROGRAM, limit };
        let ended = tokio::time::timeout(limit, child).await.map_err(no_answer).and_then(|ended| ended);
        ended.map_err(|error| function_failure(&self.label, Some(self.call_limit), error))
    }

    /// Parses the call that a child of farfork has printed.
    ///
    /// # Errors
    /// The errors of [`parse_call`].
    pub(crate) fn parse_call(&self, output: &str) -> Result<FunctionCall, BenchError> {
        parse_call(output, &self.label, self.digest)
    }

    /// The digest of the function's result in the parent.
    pub(crate) fn digest(&self) -> i64 {
        self.digest
    }

    /// Makes the parent fork a child by os.fork(). The child connects to a Unix socket, writes its index, and then
    /// answers each request with a call.
    pub(crate) fn fork_connected(&mut self, index: usize, socket: &Path) -> Result<(), BenchError> {
        self.program.send_text(&format!("w{index} {}\n", socket.display()))?;
        let [] = self.program.read_answer("connecting")?;
        Ok(())
    }

    /// The task of the parent's children, with the payload of the parent's own calls.
    pub(crate) fn task(&self, payload: &str) -> ChildTask {
        ChildTask::Function { name: self.label.clone(), payload: payload.to_owned(), digest: self.digest }
    }
}

/// Parses the call that a child of farfork has printed.
///
/// # Errors
/// The output has another form, or the result has another digest.
pub(crate) fn parse_call(output: &str, function: &str, digest: i64) -> Result<FunctionCall, BenchError> {
    let numbers = parse_numbers(PROGRAM, output, "ran").map_err(|error| function_failure(function, None, error))?;
    check_call(numbers, function, "farfork", digest)
}

/// Adds the function to an error of its process. `call_limit` is the time after which the process ends by SIGALRM.
pub(crate) fn function_failure(function: &str, call_limit: Option<Duration>, error: BenchError) -> BenchError {
    const IN_CHILD: &str = "a call in a child of farfork";
    let cause = match error {
        BenchError::ProgramFailed { why, .. } => why,
        BenchError::ProgramEnded { status, .. } => {
            describe_end(status.signal(), status, call_limit, "loading or calling it")
        }
        BenchError::ChildFailed { how, .. } => {
            let signal = if let ChildEnd::Killed(signal) = how { Some(signal.cast_signed()) } else { None };
            describe_end(signal, how, call_limit, IN_CHILD)
        }
        BenchError::NoAnswer { limit, .. } => format!("its process gave no answer within {}", format_duration(limit)),
        BenchError::UnexpectedAnswer { output, .. } => format!("{IN_CHILD} printed `{output}` instead of its result"),
        other => return other,
    };
    BenchError::FunctionFailed { function: function.to_owned(), cause }
}

fn check_call(
    [started_ns, execution_ns, result]: [i64; 3],
    function: &str,
    child_of: &'static str,
    digest: i64,
) -> Result<FunctionCall, BenchError> {
    if result != digest {
        return Err(BenchError::WrongResult { function: function.to_owned(), child_of });
    }
    Ok(FunctionCall { started_ns, execution_ns })
}

fn describe_end(signal: Option<i32>, end: impl fmt::Display, call_limit: Option<Duration>, what: &str) -> String {
    if signal != Some(Signal::ALARM.as_raw()) {
        return format!("{what} ended the process: {end}");
    }
    let limit = call_limit.map_or("its time limit".to_owned(), |limit| format_duration(limit).to_string());
    format!("{what} took longer than {limit}; to allow more time: --timeout")
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt as _;

    use super::{EMBEDDED, FunctionSource};

    #[test]
    fn a_function_is_an_embedded_name_or_a_file() {
        assert_eq!(FunctionSource::embedded().len(), EMBEDDED.len());
        assert_eq!(FunctionSource::parse("json").unwrap().file, None);
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("mine.py");
        std::fs::write(&file, "").unwrap();
        let own = FunctionSource::parse(&format!("{}:work", file.display())).unwrap();
        assert_eq!((own.name.as_str(), own.handler.as_str()), ("mine.py:work", "work"));
        assert_eq!(own.to_string(), format!("{}:work", file.canonicalize().unwrap().display()));
        assert_eq!(FunctionSource::parse(&file.display().to_string()).unwrap().handler, "handler");
        let distinct =
            FunctionSource::make_distinct(vec![own.clone(), own.clone(), FunctionSource::parse("json").unwrap()]);
        assert_eq!(distinct.len(), 2);
        for wrong in ["hello", "", "mine.py:", "/nonexistent/mine.py"] {
            assert!(FunctionSource::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_path_may_have_colons_but_must_be_text() {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &OsStr| {
            std::fs::create_dir(directory.path().join(name)).unwrap();
            let file = directory.path().join(name).join("mine.py");
            std::fs::write(&file, "").unwrap();
            file
        };
        let file = write(OsStr::new("a:b"));
        for (text, handler) in
            [(format!("{}", file.display()), "handler"), (format!("{}:work", file.display()), "work")]
        {
            let source = FunctionSource::parse(&text).unwrap();
            assert_eq!((source.file, source.handler.as_str()), (Some(file.canonicalize().unwrap()), handler));
        }
        let link = directory.path().join("link.py");
        std::os::unix::fs::symlink(write(OsStr::from_bytes(b"\xff")), &link).unwrap();
        let refused = FunctionSource::parse(&link.display().to_string()).unwrap_err();
        assert!(refused.contains("not UTF-8"), "{refused}");
    }
}
