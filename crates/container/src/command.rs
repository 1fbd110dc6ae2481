//! Starts a program in the container of a running process, with the rights of that process.

use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;
use std::process::Command;

use farfork_sys::namespace;
use farfork_sys::process;
use farfork_sys::process_identity::ProcessIdentity;
use farfork_sys::rights::ProcessRights;
use serde::{Deserialize, Serialize};

/// A program to start in the container of a process.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ContainerCommand {
    /// The process, as `PID@TICKS`.
    pub process: String,
    /// The working directory, as a path in the container; `None`: the one of the process.
    pub directory: Option<PathBuf>,
    /// Variables that are added to the environment of the process.
    pub environment: Vec<(String, String)>,
    /// The program and its arguments. A name without a slash is searched in the PATH of the environment.
    pub arguments: Vec<String>,
    /// A seccomp filter that the program gets, an array of `struct sock_filter`.
    pub filter: Option<Vec<u8>>,
}

impl ContainerCommand {
    /// Moves this process into the namespaces of the process, except its pid namespace, which the program will be in. Returns
    /// the program, ready to start. This process must be root and have one thread.
    ///
    /// # Errors
    /// The process has ended, or a system call fails. This process may then be in some of the namespaces.
    pub fn enter_container(self) -> io::Result<Command> {
        let process: ProcessIdentity = self.process.parse()?;
        let ended = || io::Error::new(io::ErrorKind::NotFound, "the child has ended");
        let pidfd = process.open()?.ok_or_else(ended)?;
        let rights = ProcessRights::of_process(process.pid)?;
        let oom_score = process::read_line(&format!("/proc/{}/oom_score_adj", process.pid))?;
        // The program inherits it.
        std::fs::write("/proc/self/oom_score_adj", oom_score)?;
        let environment = process::read_bytes(&format!("/proc/{}/environ", process.pid))?;
        // All reads above concern this process, not a later one with its pid.
        process.open()?.ok_or_else(ended)?;
        namespace::enter_process(process.pid, pidfd.as_fd(), self.directory.as_deref())?;
        let (program, arguments) = self.arguments.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let mut command = Command::new(program);
        command.args(arguments).env_clear().envs(parse_environment(&environment)).envs(self.environment);
        rights.apply_to(&mut command, self.filter);
        Ok(command)
    }
}

/// Parses `/proc/PID/environ`. A variable without `=` is not one.
fn parse_environment(bytes: &[u8]) -> impl Iterator<Item = (OsString, OsString)> {
    let text = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
    bytes.split(|byte| *byte == 0).filter_map(move |variable| {
        let at = variable.iter().position(|byte| *byte == b'=').filter(|at| *at > 0)?;
        Some((text(&variable[..at]), text(&variable[at + 1..])))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_environment_is_parsed() {
        let variables: Vec<_> = parse_environment(b"A=1\0PATH=/bin:/usr=x\0nothing\0=odd\0EMPTY=\0").collect();
        let wanted =
            [("A", "1"), ("PATH", "/bin:/usr=x"), ("EMPTY", "")].map(|(name, value)| (name.into(), value.into()));
        assert_eq!(variables, wanted);
    }
}
