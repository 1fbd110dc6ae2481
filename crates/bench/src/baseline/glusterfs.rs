//! A peer of `farfork bench volume`: GlusterFS with a replica in memory on each node, mounted on the first node.
//!
//! The processes of a server have their own pid and mount namespaces, so that no server uses the directories of the machine,
//! and that none of its processes outlives it.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::BenchError;
use crate::experiment::nodes::ClusterNode;
use crate::machine::Machine;

/// Debian's package with all programs of GlusterFS.
pub(crate) const PACKAGE: &str = "glusterfs-server";
const SERVER: &str = "glusterd";
const CONSOLE: &str = "gluster";
const CLIENT: &str = "glusterfs";
/// The name of the volume.
const VOLUME: &str = "bench";

/// Hides the directories of the machine in which servers and the console make files, whatever their options say.
const HIDE_DIRECTORIES: &str = r#"
for directory in /var/lib/glusterd /var/run/gluster /var/log/glusterfs; do
    [ ! -d "$directory" ] || mount -t tmpfs gluster "$directory" || exit 1
done
"#;

/// Runs the console.
const CONSOLE_SCRIPT: &str = r#"exec "$@""#;

/// Runs a server in the background, until the standard input ends. The shell is the first process of a pid namespace: the
/// kernel kills the others, among them the daemons of the bricks, when it ends.
const SERVER_SCRIPT: &str = r#"
"$@" &
read -r line
"#;

/// Runs a client in the background, until the standard input ends. Then unmounts the directory, the first argument.
const CLIENT_SCRIPT: &str = r#"
directory=$1
shift
"$@" &
read -r line
umount --lazy "$directory"
kill -KILL $!
wait
"#;

/// Writes the file `ready` to the directory, its first argument, if something is mounted there.
const WRITE_SCRIPT: &str = r#"mountpoint "$0" && rm -f "$0/ready" && echo ready > "$0/ready""#;

/// Time limit to start the servers, the volume and the client. A server takes seconds to start, and minutes on a busy
/// machine.
const START_LIMIT: Duration = Duration::from_secs(180);
/// Interval between attempts. A server connects again to another one only after seconds.
const RETRY_INTERVAL: Duration = Duration::from_millis(250);

/// Number of options in a line of the settings.
const OPTIONS_PER_LINE: usize = 3;

/// Is called during waits, and may end the run.
type InterruptCheck<'a> = &'a mut dyn FnMut() -> Result<(), BenchError>;

/// A mounted volume with a replica on each node. Dropping this value unmounts it and ends its processes.
#[derive(Debug)]
pub(crate) struct GlusterVolume {
    directory: PathBuf,
    /// Layout and options of the volume, in lines.
    settings: Vec<String>,
    // Dropped before the servers.
    _client: BackgroundProcess,
    _servers: Vec<BackgroundProcess>,
}

/// A shell with a process in the background. The shell ends the process when its standard input, a pipe of this process,
/// ends: at the latest when this process does.
#[derive(Debug)]
struct BackgroundProcess(Child);

/// The files of a server, which are all below one directory.
#[derive(Debug)]
struct ServerFiles(PathBuf);

/// Starts a volume.
#[derive(Debug)]
struct GlusterSetup<'a> {
    nodes: &'a [ClusterNode],
    files: Vec<ServerFiles>,
    deadline: Instant,
}

/// Returns the version of the GlusterFS that is installed on a machine, such as `glusterfs 10.3`. `None` if it is not installed.
pub(crate) fn installed_version(machine: &dyn Machine) -> Option<String> {
    // The console and the client are in other packages than the server.
    let versions = [CONSOLE, CLIENT, SERVER].map(|program| {
        let output = machine.run(program, Command::new(program).arg("--version"), &[]).ok()?;
        Some(String::from_utf8_lossy(&output).lines().next()?.trim().to_owned())
    });
    versions.into_iter().collect::<Option<Vec<_>>>()?.pop()
}

impl GlusterVolume {
    /// Starts a server on each node, with its files in a directory of the tmpfs `memory`. Then creates and mounts a volume.
    ///
    /// # Errors
    /// A process of GlusterFS cannot be started, or does not work in time, or `check_interrupt` fails.
    pub(crate) fn start(
        nodes: &[ClusterNode],
        memory: &Path,
        check_interrupt: InterruptCheck<'_>,
    ) -> Result<Self, BenchError> {
        let failed = |cause| BenchError::Program { program: SERVER, cause };
        let base = memory.join("gluster");
        let files: Vec<_> = nodes.iter().map(|node| ServerFiles(base.join(&node.name))).collect();
        let directory = base.join("mount");
        for (node, files) in nodes.iter().zip(&files) {
            node.machine().run(
                "mkdir",
                Command::new("mkdir").arg("-p").arg(&directory).args(files.directories()),
                &[],
            )?;
        }
        let setup = GlusterSetup { nodes, files, deadline: Instant::now() + START_LIMIT };
        let servers = nodes.iter().zip(&setup.files).map(|(node, files)| BackgroundProcess::start_server(node, files));
        let servers = servers.collect::<io::Result<Vec<_>>>().map_err(failed)?;
        setup.create_volume(check_interrupt)?;
        let client = BackgroundProcess::start_client(&nodes[0], &setup.files[0], &directory);
        let client = client.map_err(|cause| BenchError::Program { program: CLIENT, cause })?;
        setup.wait_for_mount(&directory, check_interrupt)?;
        let settings = describe_volume(&setup.run_console(&["volume", "info", VOLUME])?);
        Ok(Self { directory, settings, _client: client, _servers: servers })
    }

    /// The directory at which the volume is mounted.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// The layout and the options of the volume, in lines.
    pub(crate) fn settings(&self) -> &[String] {
        &self.settings
    }
}

impl GlusterSetup<'_> {
    /// Connects the servers, creates the volume and starts it.
    fn create_volume(&self, check_interrupt: InterruptCheck<'_>) -> Result<(), BenchError> {
        for node in &self.nodes[1..] {
            let address = node.machine().address().to_string();
            self.retry(check_interrupt, || self.run_console(&["peer", "probe", &address]))?;
        }
        let replicas = self.nodes.len().to_string();
        let bricks = self.nodes.iter().zip(&self.files);
        let bricks: Vec<_> =
            bricks.map(|(node, files)| format!("{}:{}", node.machine().address(), files.brick().display())).collect();
        let mut create = vec!["volume", "create", VOLUME, "replica", &replicas, "transport", "tcp"];
        create.extend(bricks.iter().map(String::as_str));
        // `force`: the bricks may be on the file system of the root directory.
        create.push("force");
        // The command fails until the second server and the third one have connected to each other.
        self.retry(check_interrupt, || self.run_console(&create))?;
        self.retry(check_interrupt, || self.run_console(&["volume", "start", VOLUME, "force"]))?;
        Ok(())
    }

    /// Waits until a file that is written to the volume is on all bricks. Before the mount, the file would be in the directory
    /// below it. Each attempt writes the file again: a brick that connects late gets the earlier one by self-healing, which
    /// the next write does not wait for.
    fn wait_for_mount(&self, directory: &Path, check_interrupt: InterruptCheck<'_>) -> Result<(), BenchError> {
        let run = |node: usize, command: &mut Command| self.nodes[node].machine().run(CLIENT, command, &[]).map(drop);
        self.retry(check_interrupt, || {
            run(0, Command::new("sh").args(["-c", WRITE_SCRIPT]).arg(directory))?;
            let mut bricks = self.files.iter().enumerate();
            bricks.try_for_each(|(node, files)| run(node, Command::new("ls").arg(files.brick().join("ready"))))
        })?;
        run(0, Command::new("rm").arg(directory.join("ready")))
    }

    /// Repeats an operation until it succeeds. After the time limit, returns its error.
    fn retry<T>(
        &self,
        check_interrupt: InterruptCheck<'_>,
        mut operation: impl FnMut() -> Result<T, BenchError>,
    ) -> Result<T, BenchError> {
        loop {
            check_interrupt()?;
            match operation() {
                Err(_) if Instant::now() < self.deadline => thread::sleep(RETRY_INTERVAL),
                result => return result,
            }
        }
    }

    /// Runs a command of the console on the first node. Returns its output.
    fn run_console(&self, arguments: &[&str]) -> Result<String, BenchError> {
        let files = &self.files[0];
        let mut command = isolated_shell(&[], CONSOLE_SCRIPT);
        command.args([CONSOLE, "--mode=script"]).arg(format!("--glusterd-sock={}", files.socket().display()));
        command.arg(format!("--log-file={}", files.log("console").display())).args(arguments);
        let output = self.nodes[0].machine().run(CONSOLE, &command, &[])?;
        Ok(String::from_utf8_lossy(&output).into_owned())
    }
}

impl ServerFiles {
    fn directories(&self) -> [PathBuf; 4] {
        [self.state(), self.run(), self.logs(), self.brick()]
    }

    fn state(&self) -> PathBuf {
        self.0.join("state")
    }

    fn run(&self) -> PathBuf {
        self.0.join("run")
    }

    fn logs(&self) -> PathBuf {
        self.0.join("log")
    }

    /// The replica.
    fn brick(&self) -> PathBuf {
        self.0.join("brick")
    }

    /// The socket of the server, for the console.
    fn socket(&self) -> PathBuf {
        self.run().join("glusterd.socket")
    }

    fn log(&self, of: &str) -> PathBuf {
        self.logs().join(format!("{of}.log"))
    }
}

impl BackgroundProcess {
    /// Starts the server of a node.
    fn start_server(node: &ClusterNode, files: &ServerFiles) -> io::Result<Self> {
        let mut command = isolated_shell(&["--pid", "--fork", "--kill-child", "--mount-proc"], SERVER_SCRIPT);
        command.args([SERVER, "--no-daemon"]);
        let options = [
            ("working-directory", files.state()),
            ("run-directory", files.run()),
            ("glusterd-sockfile", files.socket()),
            // Despite its name, it is the directory of the logs of the bricks.
            ("cluster-test-mode", files.logs()),
        ];
        for (name, path) in options {
            command.arg(format!("--xlator-option=management.{name}={}", path.display()));
        }
        command.arg(format!("--pid-file={}", files.run().join("glusterd.pid").display()));
        command.arg(format!("--log-file={}", files.log(SERVER).display()));
        Self::spawn(node, &command)
    }

    /// Starts the client of a node, which mounts the volume at `directory`.
    fn start_client(node: &ClusterNode, files: &ServerFiles, directory: &Path) -> io::Result<Self> {
        let mut command = Command::new("sh");
        command.args(["-c", CLIENT_SCRIPT, "sh"]).arg(directory).args([CLIENT, "--no-daemon"]);
        command.arg(format!("--volfile-server={}", node.machine().address()));
        command.arg(format!("--volfile-id=/{VOLUME}"));
        command.arg(format!("--log-file={}", files.log(CLIENT).display()));
        command.arg(directory);
        Self::spawn(node, &command)
    }

    fn spawn(node: &ClusterNode, command: &Command) -> io::Result<Self> {
        let mut command = node.machine().command(command);
        // Ctrl-C must reach only the benchmark, which ends the shell itself.
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        Ok(Self(command.spawn()?))
    }
}

impl Drop for BackgroundProcess {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        // The shell ends when its standard input does.
        let _ = self.0.wait();
    }
}

/// Returns a command that runs a script without the directories of the machine, in a mount namespace of its own and in other
/// namespaces that unshare(1) makes. The arguments that the caller adds are those of the script.
fn isolated_shell(namespaces: &[&str], script: &str) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private"]).args(namespaces);
    command.args(["sh", "-c", &format!("{HIDE_DIRECTORIES}{script}"), "sh"]);
    command
}

/// Describes a volume in lines, from the output of `gluster volume info`.
fn describe_volume(info: &str) -> Vec<String> {
    let value = |name: &str| {
        let found = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        found.map_or("unknown", str::trim).to_lowercase()
    };
    let (kind, bricks, transport) = (value("Type"), value("Number of Bricks"), value("Transport-type"));
    let layout = format!("{kind} {bricks} bricks in memory, transport {transport}, one volume for all rows");
    let options = info.lines().skip_while(|line| !line.starts_with("Options Reconfigured:")).skip(1);
    let options: Vec<_> = options.map(str::trim).filter(|option| !option.is_empty()).collect();
    let options = options.chunks(OPTIONS_PER_LINE).map(|options| format!("options {}", options.join(", ")));
    std::iter::once(layout).chain(options).collect()
}

#[cfg(test)]
mod tests {
    use super::describe_volume;

    #[test]
    fn the_settings_have_replicas_transport_and_options() {
        let info = "\nVolume Name: bench\nType: Replicate\nStatus: Started\nNumber of Bricks: 1 x 3 = 3\n\
            Transport-type: tcp\nBricks:\nBrick1: 10.0.0.1:/b\nOptions Reconfigured:\nnfs.disable: on\n\
            transport.address-family: inet\nstorage.fips-mode-rchecksum: on\nperformance.client-io-threads: off\n";
        let expected = [
            "replicate 1 x 3 = 3 bricks in memory, transport tcp, one volume for all rows",
            "options nfs.disable: on, transport.address-family: inet, storage.fips-mode-rchecksum: on",
            "options performance.client-io-threads: off",
        ];
        assert_eq!(describe_volume(info), expected);
    }
}
