//! [`RemoteHost`]: a connected host, and its master.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use tempfile::{NamedTempFile, TempPath};
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::time::timeout;

use super::config::CONFIG_NAME;
use super::directory::ClientDirectory;
use super::error::RemoteError;
use crate::inventory::{InventoryHost, TrafficEndpoint};

/// First word of the line that the master's command prints.
const CONNECTED_WORD: &str = "farfork-connected";

/// The master's command. It ends with its standard input. SSH_CONNECTION has both addresses and ports of the connection.
const MASTER_COMMAND: &str = r#"printf 'farfork-connected %s\n' "$SSH_CONNECTION" && exec cat >/dev/null"#;

/// Prints the addresses of interface $1 that other hosts can reach, one per line.
const ADDRESSES_SCRIPT: &str = r#"ip -oneline address show dev "$1" scope global"#;

/// Options of ssh for a command that uses the connection of the master. ssh connects itself if the master has ended: this is the
/// command that it would connect with, instead of ProxyJump.
const NO_CONNECTION: [&str; 2] = ["-o", "ProxyCommand=false"];

/// Start of the message of ssh about a connection that [`NO_CONNECTION`] prevents.
pub(super) const NO_CONNECTION_MESSAGE: &str = "kex_exchange_identification:";

/// Longest text of ssh's messages that is kept, in bytes.
const MESSAGES_BYTES_MAX: u64 = 4096;

/// Longest wait for ssh's messages after it has ended or was killed.
const MESSAGES_LIMIT: Duration = Duration::from_secs(1);

/// Longest wait until a master has ended after its standard input was closed.
const CLOSE_LIMIT: Duration = Duration::from_secs(5);

/// The configuration of ssh, and the socket of one master. A name of few characters, because the path of a socket is limited
/// to about 100 bytes.
#[derive(Debug)]
struct ControlSocket {
    directory: Arc<ClientDirectory>,
    number: usize,
}

impl ControlSocket {
    /// ssh(1) with the configuration and the socket. Further options and the host follow.
    fn ssh(&self) -> Command {
        let directory = self.directory.path();
        let mut command = Command::new("ssh");
        command.arg("-F").arg(directory.join(CONFIG_NAME));
        // ssh expands `%` in the path.
        command.arg("-S").arg(format!("{}/{}", directory.display().to_string().replace('%', "%%"), self.number));
        // A process group of its own: Ctrl-C must reach only the coordinator, which cleans up.
        command.process_group(0).kill_on_drop(true);
        command
    }
}

/// A connected host. Dropping it ends the connection, and all commands that run with it.
#[derive(Debug)]
pub struct RemoteHost {
    host: InventoryHost,
    address: IpAddr,
    control: ControlSocket,
    master: Child,
    /// The master's command runs until this is closed.
    input: Option<ChildStdin>,
}

impl RemoteHost {
    /// Connects. `directory` is the client's; `number` is unique in it.
    pub(super) async fn connect(
        host: &InventoryHost,
        directory: &Arc<ClientDirectory>,
        number: usize,
        limit: Duration,
    ) -> Result<Self, RemoteError> {
        let control = ControlSocket { directory: Arc::clone(directory), number };
        let mut command = control.ssh();
        command.args(["-M", "--", host.name.as_str(), MASTER_COMMAND]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut master = command.spawn().map_err(|cause| RemoteError::Local { action: "run ssh", cause })?;
        let input = master.stdin.take();
        let messages = tokio::spawn(read_messages(master.stderr.take().expect("it is piped")));
        let answer = read_connected_line(master.stdout.take().expect("it is piped"));
        match timeout(limit, answer).await {
            Ok(Some(ConnectedLine { text_before, .. })) if !text_before.is_empty() => {
                Err(RemoteError::ShellOutput { host: host.name.to_string(), text: text_before })
            }
            Ok(Some(ConnectedLine { address, .. })) => Ok(Self { host: host.clone(), address, control, master, input }),
            Ok(None) => {
                let detail = timeout(MESSAGES_LIMIT, messages).await.ok().and_then(Result::ok).unwrap_or_default();
                Err(connect_error(host, detail))
            }
            Err(_) => {
                let (host, address) = (host.name.to_string(), host.address.clone());
                Err(RemoteError::Timeout { host, address, limit })
            }
        }
    }

    /// Name of the host.
    pub fn name(&self) -> &str {
        self.host.name.as_str()
    }

    /// The host in the inventory.
    pub fn inventory_host(&self) -> &InventoryHost {
        &self.host
    }

    /// The address of the host at which its sshd accepted this connection.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// The address of the host for the traffic of the cluster: the first one that the inventory names.
    ///
    /// # Errors
    /// The host has no such interface, or the interface has no address that other hosts can reach.
    pub async fn traffic_address(&self) -> Result<IpAddr, RemoteError> {
        let interface = match self.host.traffic.first() {
            None => return Ok(self.address),
            Some(TrafficEndpoint::Address(address)) => return Ok(*address),
            Some(TrafficEndpoint::Interface(interface)) => interface,
        };
        let action = format!("list the addresses of interface {interface}");
        let listed = self.require_script(&action, ADDRESSES_SCRIPT, &[interface], b"").await?;
        // `2: eth0    inet 10.0.0.1/24 scope global eth0`
        let address = listed.split_whitespace().nth(3).and_then(|address| address.split('/').next()?.parse().ok());
        let missing = || self.command_error(format!("use interface {interface}"), "it has no global address");
        address.ok_or_else(missing)
    }

    /// Makes connections to a Unix socket of this machine lead to the socket `path` of the host. Returns the local socket, which
    /// ends with this connection.
    ///
    /// # Errors
    /// ssh refuses. A missing socket on the host is no error: connections to the local one are closed then.
    pub async fn forward_socket(&self, path: &str) -> Result<PathBuf, RemoteError> {
        let local = self.control.directory.path().join(format!("{}.api", self.control.number));
        let mut command = self.control.ssh();
        command.args(["-o", "ClearAllForwardings=no", "-o", "StreamLocalBindMask=0177", "-O", "forward", "-L"]);
        command.arg(format!("{}:{path}", local.display())).args(["--", self.name()]).stdin(Stdio::null());
        let output = command.output().await.map_err(|cause| RemoteError::Local { action: "run ssh", cause })?;
        match output.status.success() {
            true => Ok(local),
            false => Err(self.command_error(format!("forward socket {path}"), one_line(&output.stderr))),
        }
    }

    /// Ends the connection. Commands that still run are killed if they run with the runner.
    pub async fn close(mut self) {
        self.input = None;
        // If it does not end, it is killed when it is dropped.
        let _ = timeout(CLOSE_LIMIT, self.master.wait()).await;
    }

    /// ssh(1) with a command line for the shell of the host. Uses the connection, and never makes another one.
    pub(super) fn ssh(&self, command_line: &str) -> Command {
        self.ssh_with_options(&NO_CONNECTION, command_line)
    }

    /// As [`Self::ssh`]. ssh writes its own messages to a file, so that its standard error has only those of the command.
    pub(super) fn ssh_with_messages(&self, messages: &Path, command_line: &str) -> Command {
        let file = messages.to_str().expect("the directory of the client is UTF-8");
        self.ssh_with_options(&[&NO_CONNECTION[..], &["-E", file]].concat(), command_line)
    }

    /// Makes a file for the messages of one ssh(1). It ends with the value.
    pub(super) fn make_messages_file(&self) -> Result<TempPath, RemoteError> {
        let file = NamedTempFile::new_in(self.control.directory.path());
        let failed = |cause| RemoteError::Local { action: "make a file for the messages of ssh", cause };
        file.map(NamedTempFile::into_temp_path).map_err(failed)
    }

    /// As [`Self::ssh`], but makes a connection of its own if this one has no session left: sshd(8) has a limit of ten
    /// (`MaxSessions`). ssh prints an error before it connects itself, so its errors are not shown.
    pub(super) fn ssh_with_own_connection(&self, command_line: &str) -> Command {
        self.ssh_with_options(&["-o", "LogLevel=FATAL"], command_line)
    }

    fn ssh_with_options(&self, options: &[&str], command_line: &str) -> Command {
        let mut command = self.control.ssh();
        // A command line that begins with `-` would be an option.
        assert!(!command_line.starts_with('-'), "the command line begins with a word");
        command.args(options).args(["--", self.name(), command_line]);
        command
    }

    /// Whether the master still has a connection.
    pub(super) async fn is_connected(&self) -> bool {
        let mut command = self.control.ssh();
        command.args(["-O", "check", "--", self.name()]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().await.is_ok_and(|status| status.success())
    }
}

/// The line of the master's command.
#[derive(Debug, PartialEq, Eq)]
struct ConnectedLine {
    /// The address of the host.
    address: IpAddr,
    /// The lines that the shell of the user has printed before, joined.
    text_before: String,
}

/// Reads lines until the master's command has printed its line.
async fn read_connected_line(output: impl AsyncRead + Unpin) -> Option<ConnectedLine> {
    let mut lines = BufReader::new(output.take(1 << 20)).lines();
    let mut before = Vec::new();
    while let Ok(Some(line)) = lines.next_line().await {
        // The text before may not end with a newline.
        let (text, connected) = match line.find(CONNECTED_WORD) {
            Some(at) => (&line[..at], Some(&line[at..])),
            None => (&*line, None),
        };
        before.extend_from_slice(text.as_bytes());
        before.push(b'\n');
        if let Some(connected) = connected {
            // Address and port of the client, then those of the server.
            let address = connected.split_whitespace().nth(3)?.parse::<IpAddr>().ok()?;
            return Some(ConnectedLine { address: address.to_canonical(), text_before: one_line(&before) });
        }
    }
    None
}

/// Reads the messages of ssh to their end. Keeps the first ones, which name the cause.
pub(super) async fn read_messages(mut output: impl AsyncRead + Unpin) -> String {
    let mut bytes = Vec::new();
    let _ = (&mut output).take(MESSAGES_BYTES_MAX).read_to_end(&mut bytes).await;
    let _ = tokio::io::copy(&mut output, &mut tokio::io::sink()).await;
    one_line(&bytes)
}

/// The lines of a text, trimmed and joined.
pub(super) fn one_line(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    let lines = text.lines().map(|line| line.trim_matches(|c: char| c.is_whitespace() || c == '@'));
    lines.filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ")
}

/// Classifies the end of a master that has not connected, by the messages of ssh.
fn connect_error(host: &InventoryHost, detail: String) -> RemoteError {
    let (name, address) = (host.name.to_string(), host.address.clone());
    let is_changed = detail.contains("REMOTE HOST IDENTIFICATION HAS CHANGED") || detail.contains("REVOKED HOST KEY");
    if is_changed || detail.contains("Host key verification failed") {
        return RemoteError::HostKey { host: name, address, is_changed, detail };
    }
    if detail.contains("Permission denied") || detail.contains("Too many authentication failures") {
        return RemoteError::Login { host: name, address, detail };
    }
    let detail = if detail.is_empty() { "ssh gave no reason".to_owned() } else { detail };
    RemoteError::Unreachable { host: name, address, detail }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn text_of_the_shell_is_found_before_the_line_of_the_master() {
        let read = |text: &'static str| read_connected_line(text.as_bytes());
        let address = "10.0.0.1".parse().unwrap();
        let connected = |text: &str| Some(ConnectedLine { address, text_before: text.to_owned() });
        assert_eq!(read("farfork-connected 10.0.0.9 1 10.0.0.1 22\n").await, connected(""));
        assert_eq!(read("Welcome\nfarfork-connected 10.0.0.9 1 10.0.0.1 22\n").await, connected("Welcome"));
        assert_eq!(
            read("a\nno newlinefarfork-connected 10.0.0.9 1 ::ffff:10.0.0.1 22\n").await,
            connected("a; no newline")
        );
        assert_eq!(read("farfork-connected\n").await, None);
    }
}
