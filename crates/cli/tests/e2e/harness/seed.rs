//! `Seed`: a seed and its children, made with the same commands as a user types.

use std::fs;
use std::path::PathBuf;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use serde_json::Value;

use super::farfork::{COMMAND_LIMIT, Farfork, fail_or_time_out};
use super::parent::Parent;
use super::wait::{self, CommandOutput};
use super::{print_error, scratch};

/// The exit status of a test program that found everything right.
pub(crate) const EXIT_VERIFIED: i64 = 42;

/// Time by which the time limit of `farfork wait` is shorter than the limit of the command.
const WAIT_MARGIN: Duration = Duration::from_secs(20);

/// A seed. Dropping the value drops the seed.
pub(crate) struct Seed {
    farfork: Farfork,
    /// The output of `prepare --json`.
    pub(crate) prepare_output: Value,
}

/// A detached child.
#[derive(Debug, Clone)]
pub(crate) struct StartedChild {
    pub(crate) id: String,
    pub(crate) node: String,
    pub(crate) pid: i32,
}

impl Seed {
    /// Prepares a parent.
    pub(crate) fn prepare(farfork: &Farfork, parent: &Parent) -> Self {
        Self::prepare_with(farfork, parent, &[])
    }

    /// Prepares a parent with options, such as `--freeze`.
    pub(crate) fn prepare_with(farfork: &Farfork, parent: &Parent, options: &[&str]) -> Self {
        Self::prepare_process(farfork, &parent.pid_text(), options)
    }

    /// Prepares the process with this id.
    pub(crate) fn prepare_process(farfork: &Farfork, pid: &str, options: &[&str]) -> Self {
        let said = farfork.json(&[&["prepare", pid], options].concat());
        Self { farfork: farfork.clone(), prepare_output: said }
    }

    /// Makes a `Seed` from the output of `prepare --json`.
    pub(crate) fn from_json(farfork: &Farfork, output: &str) -> Self {
        let said = serde_json::from_str(output).unwrap_or_else(|error| panic!("{error}: {output}"));
        Self { farfork: farfork.clone(), prepare_output: said }
    }

    pub(crate) fn id(&self) -> &str {
        self.prepare_output["seed"].as_str().expect("prepare names the seed")
    }

    /// Time for which the parent was stopped.
    pub(crate) fn pause(&self) -> Duration {
        Duration::from_micros(self.prepare_output["pause_us"].as_u64().expect("prepare reports the pause"))
    }

    /// Process id, on the host, of the template: the process that holds the seed's memory.
    pub(crate) fn template_pid(&self) -> i32 {
        let inspected = self.farfork.json(&["inspect", self.id()]);
        let pid = inspected["template_pid"].as_i64().unwrap_or_else(|| panic!("no template_pid in {inspected}"));
        i32::try_from(pid).expect("a process id")
    }

    /// Runs one attached child to its end.
    pub(crate) fn fork_attached(&self, payload: &str, options: &[&str]) -> CommandOutput {
        let file = scratch::file(payload);
        let payload_path = file.path().to_string_lossy();
        self.farfork.run(&[&["fork", self.id(), "--payload", &payload_path], options].concat())
    }

    /// Runs one attached child to its end, and requires the right answer.
    pub(crate) fn fork_and_check(&self, parent: &Parent, number: u64, options: &[&str]) {
        let ended = self.fork_attached(&number.to_string(), options);
        let expected = format!("result {number} {}", parent.expected_answer(number));
        if ended.status.code() != Some(42) || ended.stdout.lines().all(|line| line != expected) {
            let (status, output) = (ended.status, without_ticks(&ended.stdout));
            let message = format!("the child did not answer `{expected}`: {status}\n{}{output}", ended.stderr);
            let is_wrong = |line: &str| line.starts_with("result ") && line != expected;
            assert!(!ended.stdout.lines().any(is_wrong), "{message}");
            fail_or_time_out(message);
        }
    }

    /// Starts detached children, one for each payload.
    pub(crate) fn fork_detached(&self, payloads: &[String], options: &[&str]) -> Vec<StartedChild> {
        self.fork_detached_within(COMMAND_LIMIT, payloads, options)
    }

    /// As [`Self::fork_detached`], with another time limit.
    pub(crate) fn fork_detached_within(
        &self,
        limit: Duration,
        payloads: &[String],
        options: &[&str],
    ) -> Vec<StartedChild> {
        let file = scratch::file(&payloads.join("\n"));
        let path = file.path().to_string_lossy();
        let arguments = [&["fork", self.id(), "--detach", "--payloads", &path], options].concat();
        let said = self.farfork.json_within(limit, &arguments);
        let children = said["children"].as_array().expect("fork lists children");
        assert_eq!(
            children.len(),
            payloads.len(),
            "the number of outcomes differs from the number of payloads: {said}"
        );
        children.iter().map(StartedChild::from_json).collect()
    }

    /// Starts detached children without a payload. They continue like their parent.
    pub(crate) fn fork_idle(&self, count: usize, options: &[&str]) -> Vec<StartedChild> {
        let count_text = count.to_string();
        let said = self.farfork.json(&[&["fork", self.id(), "--detach", "-n", &count_text], options].concat());
        said["children"].as_array().expect("fork lists children").iter().map(StartedChild::from_json).collect()
    }

    /// Tells held children (`situations/paging.c`) to end.
    pub(crate) fn release_children(&self, children: &[StartedChild]) {
        signal_children_to_finish(&self.farfork, children);
    }

    /// Waits for children that have these numbers as payloads, and checks every answer.
    pub(crate) fn check_answers(&self, parent: &Parent, children: &[StartedChild], numbers: &[u64]) {
        self.check_answers_within(COMMAND_LIMIT, parent, children, numbers);
    }

    /// As [`Self::check_answers`], with another time limit.
    pub(crate) fn check_answers_within(
        &self,
        limit: Duration,
        parent: &Parent,
        children: &[StartedChild],
        numbers: &[u64],
    ) {
        let ids: Vec<&str> = children.iter().map(|child| child.id.as_str()).collect();
        let timeout = format!("{}s", limit.saturating_sub(WAIT_MARGIN).as_secs());
        let arguments = [&["wait", "--results", "--timeout", &timeout], &ids[..]].concat();
        let said = self.farfork.json_ignoring_status_within(limit, &arguments);
        let ended = said["children"].as_array().unwrap_or_else(|| panic!("{said}\n{}", kernel_waits_text(children)));
        assert_eq!(ended.len(), numbers.len());
        for (end, number) in ended.iter().zip(numbers) {
            let expected = format!("result {number} {}", parent.expected_answer(*number));
            let stdout = end["stdout"].as_str().unwrap_or_default();
            let is_right = end["exit_code"] == EXIT_VERIFIED && stdout.lines().any(|line| line == expected);
            assert!(is_right, "no `{expected}` from {}", describe(&self.farfork, end));
        }
    }
}

impl Drop for Seed {
    fn drop(&mut self) {
        // The command fails if the seed's node has ended, which some tests intend.
        let mut command = self.farfork.command(&["drop", "--force", self.id()]);
        let Ok(mut child) = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn() else { return };
        let dropped = wait::poll_within(COMMAND_LIMIT, || child.try_wait().transpose());
        if dropped.is_none() {
            let _ = child.kill();
            wait::reap_killed(&mut child);
            let message = format!("farfork drop {}: still running after {} s", self.id(), COMMAND_LIMIT.as_secs());
            if thread::panicking() {
                print_error(message);
            } else {
                wait::time_out(message);
            }
        }
    }
}

impl StartedChild {
    fn from_json(said: &Value) -> Self {
        assert!(said["error"].is_null(), "a child failed to start: {said}");
        let text = |key: &str| said[key].as_str().unwrap_or_else(|| panic!("no {key} in {said}")).to_owned();
        let pid = said["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok()).expect("a process id");
        assert!(said["resume_us"].is_u64(), "fork reports its time");
        Self { id: text("child"), node: text("node"), pid }
    }
}

/// Sends SIGUSR2 to children that run until they receive it.
pub(crate) fn signal_children_to_finish(farfork: &Farfork, children: &[StartedChild]) {
    let ids: Vec<&str> = children.iter().map(|child| child.id.as_str()).collect();
    farfork.json(&[&["kill", "--signal", "USR2"], &ids[..]].concat());
}

/// Returns the kernel functions in which the threads of children wait, for the report of a test that timed out.
pub(crate) fn kernel_waits_text(children: &[StartedChild]) -> String {
    children.iter().map(StartedChild::kernel_waits).collect()
}

impl StartedChild {
    /// Returns the kernel function in which each thread of the child waits, to diagnose a hang.
    fn kernel_waits(&self) -> String {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.pid)).into_iter().flatten().flatten();
        let read = |path: PathBuf| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
        let line = |task: PathBuf| {
            let [name, place, call] = ["comm", "wchan", "syscall"].map(|file| read(task.join(file)));
            format!("  {}: {name}, in {place}, call {call}\n", task.display())
        };
        let lines: String = tasks.map(|task| line(task.path())).collect();
        format!("{} on {}:\n{lines}", self.id, self.node)
    }
}

/// Returns the output of a child without its `tick` lines.
pub(crate) fn without_ticks(output: &str) -> String {
    let lines = output.lines().filter(|line| !line.starts_with("tick "));
    lines.map(|line| format!("{line}\n")).collect()
}

fn describe(farfork: &Farfork, end: &Value) -> String {
    let id = end["child"].as_str().unwrap_or_default();
    let logs = farfork.run(&["logs", "--stderr", id]).stderr;
    format!(
        "{id} on {}: {}, {}, error {}{}\n{logs}",
        end["node"],
        end["state"],
        end["exit_code"],
        end["error"],
        without_ticks(end["stdout"].as_str().unwrap_or_default())
    )
}
