//! [`SshServer`]: sshd(8) on a loopback address, in its own mount and process namespaces.

use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// Longest wait until the server listens, on a busy machine.
const READY_LIMIT: Duration = Duration::from_secs(60);

/// sshd needs an empty directory in /run. In these namespaces, /run is empty, and all processes end with the first one.
/// bash(1) reads ~/.bashrc in each session of sshd. The file can print, be slow, or leave lock files if the session is
/// killed, so it is hidden.
const START_SCRIPT: &str = r#"
set -e
mount -t tmpfs tmpfs /run
mkdir -m 755 /run/sshd
if [ -e ~root/.bashrc ]; then mount --bind /dev/null ~root/.bashrc; fi
exec /usr/sbin/sshd -D -e -f "$1""#;

/// A running server with its own host key, and the key of the only user that may log in: root.
pub(crate) struct SshServer {
    process: Child,
    directory: TempDir,
    address: &'static str,
    port: u16,
}

impl SshServer {
    /// Starts a server at a loopback address, and waits until it listens.
    pub(crate) fn start(address: &'static str) -> Self {
        let directory = tempfile::tempdir().expect("the temporary directory can be written");
        let path = |name: &str| directory.path().join(name);
        generate_key(&path("host_key"));
        generate_key(&path("user_key"));
        let port = free_port(address);
        let config = format!(
            "ListenAddress {address}\nPort {port}\nHostKey {}\nAuthorizedKeysFile {}\nPidFile none\nUsePAM no\n\
             PermitRootLogin prohibit-password\nPasswordAuthentication no\nKbdInteractiveAuthentication no\nStrictModes no\n",
            path("host_key").display(),
            path("user_key.pub").display(),
        );
        fs::write(path("sshd_config"), config).expect("a small file can be written");
        let log = fs::File::create(path("log")).expect("a file can be created");
        let process = Command::new("unshare")
            .args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", START_SCRIPT, "sh"])
            .arg(path("sshd_config"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("unshare(1) runs");
        let server = Self { process, directory, address, port };
        server.wait_until_listening();
        server
    }

    fn wait_until_listening(&self) {
        let deadline = Instant::now() + READY_LIMIT;
        while TcpStream::connect((self.address, self.port)).is_err() {
            assert!(Instant::now() < deadline, "sshd does not listen; its log: {}; run scripts/setup.sh", self.log());
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Kills the server and all processes in its namespaces.
    pub(crate) fn kill(&self) {
        kill_process(Pid::from_child(&self.process), Signal::KILL).expect("our own child");
    }

    /// A file in the directory of the server.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The messages of the server.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    /// The tables of an inventory for a host `name` that is this server.
    pub(crate) fn inventory_host(&self, name: &str) -> String {
        let (address, port, key) = (self.address, self.port, self.path("user_key"));
        format!(
            "[[hosts]]\nname = \"{name}\"\naddress = \"{address}\"\nport = {port}\nuser = \"root\"\nkey = \"{}\"\n",
            key.display()
        )
    }

    /// The line of a file of known hosts for a server here that has the key of `key_owner`.
    pub(crate) fn known_host_with_key_of(&self, key_owner: &SshServer) -> String {
        let key = fs::read_to_string(key_owner.path("host_key.pub")).expect("the key exists");
        format!("[{}]:{} {key}", self.address, self.port)
    }
}

impl Drop for SshServer {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("-- the log of sshd:\n{}", self.log());
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn generate_key(path: &Path) {
    let output = Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(path).output();
    let output = output.expect("ssh-keygen(1) runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Returns a port without a listener.
pub(crate) fn free_port(address: &str) -> u16 {
    let listener = std::net::TcpListener::bind((address, 0)).expect("a port is free");
    listener.local_addr().expect("it is bound").port()
}
