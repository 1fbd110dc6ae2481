//! `DemoProgram`: a Python process of the demo, in the network namespace of one of the demo's nodes.

use std::env;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::Context as _;
use farfork_api::failure::Failure;
use farfork_cluster::local::LocalNode;
use farfork_terminal::cache_dir::find_cache_dir;
use serde::de::DeserializeOwned;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::timeout;
use tonic::Code;

/// Time limit for one line of a program's output. A loaded machine needs a minute to build or to pickle a large index.
const LINE_TIMEOUT: Duration = Duration::from_secs(300);

/// A directory of the demo, removed when this is dropped.
pub(super) struct DemoDirectory(PathBuf);

impl DemoDirectory {
    /// # Errors
    /// The directory exists, or it cannot be created.
    pub(super) fn make() -> anyhow::Result<Self> {
        let path = std::path::absolute(env::temp_dir())?.join(format!("farfork-demo-{}", std::process::id()));
        fs::create_dir(&path).with_context(|| format!("directory {}", path.display()))?;
        Ok(Self(path))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for DemoDirectory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Finds a Python that has NumPy: `FARFORK_PYTHON`, the one of `make setup`, or the system's.
///
/// # Errors
/// No Python with NumPy was found, or `FARFORK_PYTHON` names one without NumPy.
fn find_python() -> anyhow::Result<PathBuf> {
    if let Some(named) = env::var_os("FARFORK_PYTHON") {
        let python = PathBuf::from(named);
        // A name without a slash is looked up in PATH.
        let python = if python.components().count() > 1 { std::path::absolute(python)? } else { python };
        let cause = format!("{} cannot import NumPy", python.display());
        let failure = Failure::new(Code::FailedPrecondition, "FARFORK_PYTHON", cause);
        anyhow::ensure!(
            has_numpy(&python),
            failure.with_next_step("set FARFORK_PYTHON to a Python with NumPy, or unset it")
        );
        return Ok(python);
    }
    let candidates = [find_cache_dir().map(|cache| cache.join("python/bin/python3")), Some("python3".into())];
    let found = candidates.into_iter().flatten().find(|python| has_numpy(python));
    let failure = Failure::new(Code::FailedPrecondition, "the demo", "no Python with NumPy was found");
    found.ok_or_else(|| failure.with_next_step("run `make setup`, or set FARFORK_PYTHON to a Python with NumPy").into())
}

fn has_numpy(python: &Path) -> bool {
    let mut command = Command::new(python);
    command.args(["-c", "import numpy"]).current_dir("/").process_group(0);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// A Python interpreter and a script for it.
pub(super) struct DemoScript {
    python: PathBuf,
    path: PathBuf,
}

impl DemoScript {
    /// Writes the script into the demo's directory.
    ///
    /// # Errors
    /// There is no Python with NumPy, or the script cannot be written.
    pub(super) fn install(directory: &DemoDirectory, name: &str, source: &str) -> anyhow::Result<Self> {
        let python = find_python()?;
        let path = directory.path().join(name);
        fs::write(&path, source).with_context(|| format!("script {}", path.display()))?;
        Ok(Self { python, path })
    }

    /// Starts the script on a node.
    ///
    /// # Errors
    /// The node's daemon has ended, or nsenter(1) cannot be executed.
    pub(super) fn start(&self, node: &LocalNode, arguments: &[&str]) -> anyhow::Result<DemoProgram> {
        let daemon = node.pid().with_context(|| format!("node {}: its daemon does not run", node.name))?;
        // nsenter(1) replaces itself with Python, so its process id is Python's.
        let mut process = Command::new("nsenter")
            .arg(format!("--net=/proc/{daemon}/ns/net"))
            .arg(&self.python)
            .arg(&self.path)
            .args(arguments)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Ctrl-C must reach only the demo, which ends the program itself.
            .process_group(0)
            .spawn()
            .context("nsenter (package util-linux)")?;
        let output = process.stdout.take().context("its standard output is not a pipe")?;
        let (sender, lines) = unbounded_channel();
        thread::spawn(move || {
            let lines = BufReader::new(output).lines().map_while(Result::ok);
            lines.map(|line| sender.send(line)).take_while(Result::is_ok).for_each(drop);
        });
        Ok(DemoProgram { process, node: node.name.clone(), lines })
    }
}

/// A running program; killed when this is dropped.
pub(super) struct DemoProgram {
    process: Child,
    /// Name of the node on which the program runs.
    node: String,
    /// The program's output, line by line. A thread reads it. The channel closes at the end of the output.
    lines: UnboundedReceiver<String>,
}

impl DemoProgram {
    pub(super) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Reads the program's next line, a JSON document.
    ///
    /// # Errors
    /// The program ended, printed nothing within [`LINE_TIMEOUT`], or printed another kind of line.
    pub(super) async fn read_document<Document: DeserializeOwned>(&mut self) -> anyhow::Result<Document> {
        let line = self.read_line().await?;
        serde_json::from_str(&line).with_context(|| format!("program {} printed `{line}`", self.process.id()))
    }

    async fn read_line(&mut self) -> Result<String, Failure> {
        let Ok(line) = timeout(LINE_TIMEOUT, self.lines.recv()).await else {
            return Err(self.failure(format!("it printed no line for {} s", LINE_TIMEOUT.as_secs())));
        };
        line.ok_or_else(|| {
            let status = self.process.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
            self.ended_early(&status)
        })
    }

    fn ended_early(&self, how: &str) -> Failure {
        self.failure(format!("it ended early: {how}"))
            .with_next_step("see its messages above; a process that the kernel killed may have lacked memory")
    }

    fn failure(&self, cause: String) -> Failure {
        Failure::new(Code::Aborted, format!("program {} on {}", self.process.id(), self.node), cause)
    }

    /// Writes a line to the program's standard input.
    pub(super) fn write_line(&mut self, line: &str) -> anyhow::Result<()> {
        let mut stdin = self.process.stdin.as_ref().context("its standard input is not a pipe")?;
        // Not returned as an I/O error, because the caller would take EPIPE for its own closed standard output.
        writeln!(stdin, "{line}").map_err(|error| self.ended_early(&error.to_string()).into())
    }

    /// # Errors
    /// The program, a parent of seeds, has ended.
    pub(super) fn check_alive(&mut self) -> anyhow::Result<()> {
        match self.process.try_wait()? {
            None => Ok(()),
            Some(status) => anyhow::bail!("the parent ended during the demo, with {status}"),
        }
    }
}

impl Drop for DemoProgram {
    fn drop(&mut self) {
        // Fails if the program has already ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
