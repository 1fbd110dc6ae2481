//! `DemoProgram`: the process of the Python program that the demo forks.

use std::env;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use anyhow::Context as _;
use farfork_api::failure::Failure;
use tonic::Code;

/// The program.
const SOURCE: &str = include_str!("program.py");

/// For one line of the program: importing NumPy and filling a large array takes seconds on a slow disk.
const LINE_LIMIT: Duration = Duration::from_secs(60);

/// A directory of the demo's own, removed when this is dropped.
pub(super) struct DemoDirectory(PathBuf);

impl DemoDirectory {
    /// Makes the directory, with the program in it.
    pub(super) fn make() -> anyhow::Result<Self> {
        let path = env::temp_dir().join(format!("farfork-demo-{}", std::process::id()));
        fs::create_dir(&path).with_context(|| format!("directory {}", path.display()))?;
        let scratch = Self(path);
        fs::write(scratch.program(), SOURCE)?;
        Ok(scratch)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    fn program(&self) -> PathBuf {
        self.0.join("program.py")
    }
}

impl Drop for DemoDirectory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A Python that has NumPy: `FARFORK_PYTHON`, that of `make setup`, or the system's.
pub(super) fn find_python() -> Result<PathBuf, Failure> {
    let cache = env::var_os("FARFORK_CACHE").map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cache/farfork")));
    let candidates = [
        env::var_os("FARFORK_PYTHON").map(PathBuf::from),
        cache.map(|cache| cache.join("python/bin/python3")),
        Some("python3".into()),
    ];
    let has_numpy = |python: &PathBuf| {
        let mut command = Command::new(python);
        command.args(["-c", "import numpy"]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    candidates.into_iter().flatten().find(has_numpy).ok_or_else(|| {
        Failure::new(Code::FailedPrecondition, "the demo", "no Python with NumPy was found")
            .with_next_step("run `make setup`, or name one with FARFORK_PYTHON")
    })
}

/// The program, running; killed when this is dropped.
pub(super) struct DemoProgram {
    process: Child,
    /// Its lines, as a thread reads them; the end of its output closes it.
    lines: Receiver<String>,
}

impl DemoProgram {
    /// Starts it in one of its modes, with an array of so many MiB.
    pub(super) fn start(python: &Path, scratch: &DemoDirectory, mode: &str, mebibytes: u64) -> anyhow::Result<Self> {
        let mut process = Command::new(python)
            .arg(scratch.program())
            .args([mode, &mebibytes.to_string()])
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Ctrl-C is for the demo, which ends the program in its own time.
            .process_group(0)
            .spawn()
            .with_context(|| format!("{}", python.display()))?;
        let output = process.stdout.take().context("its standard output is a pipe")?;
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            let lines = BufReader::new(output).lines().map_while(Result::ok);
            lines.map(|line| sender.send(line)).take_while(Result::is_ok).for_each(drop);
        });
        Ok(Self { process, lines })
    }

    pub(super) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Waits until its array is filled.
    pub(super) fn wait_ready(&mut self) -> anyhow::Result<()> {
        let line = self.read_line()?;
        anyhow::ensure!(line == "ready", "the program said `{line}` where it should be ready");
        Ok(())
    }

    /// Its next line.
    pub(super) fn read_line(&mut self) -> Result<String, Failure> {
        self.lines.recv_timeout(LINE_LIMIT).map_err(|error| {
            let cause = match error {
                RecvTimeoutError::Timeout => format!("it said nothing for {} s", LINE_LIMIT.as_secs()),
                RecvTimeoutError::Disconnected => "it ended early; what it said stands above".to_owned(),
            };
            Failure::new(Code::Aborted, format!("program {}", self.process.id()), cause)
        })
    }

    /// Gives it lines on its standard input, and ends that.
    pub(super) fn write_input(&mut self, lines: &[String]) -> anyhow::Result<()> {
        let stdin: Option<ChildStdin> = self.process.stdin.take();
        let mut stdin = stdin.context("it was fed before")?;
        lines.iter().try_for_each(|line| writeln!(stdin, "{line}"))?;
        Ok(())
    }

    /// The parent of seeds must run on as if nothing had happened.
    pub(super) fn check_alive(&mut self) -> anyhow::Result<()> {
        match self.process.try_wait()? {
            None => Ok(()),
            Some(status) => anyhow::bail!("the parent ended during the demo, with {status}"),
        }
    }
}

impl Drop for DemoProgram {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
