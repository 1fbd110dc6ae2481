//! `SshHosts`: hosts that a coordinator reaches over ssh. Each has its own network, processes, host key and root file
//! system. They end with this process, and leave nothing.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Read as _;
use std::net::TcpStream;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use farfork_sys::namespace;

use super::scratch::TestDirectory;
use super::wait::CommandOutput;
use super::{BINARY, leftovers, print_error, scratch, wait};

/// Longest wait until a server listens, on a busy machine.
const READY_LIMIT: Duration = Duration::from_secs(60);

/// Longest run of one command.
const COMMAND_LIMIT: Duration = Duration::from_secs(120);

/// Lines of a server's log that a failure shows.
const LOG_LINES_MAX: usize = 20;

/// Makes the root file system of a host in $1, a writable layer over the root of this machine, and becomes its first process:
/// sshd. Waits for a line on the standard input first, when the network is ready. bash(1) reads ~/.bashrc in each session of
/// sshd. The file can print, be slow, or leave lock files if the session is killed, so it is hidden.
const HOST_SCRIPT: &str = r#"
set -e
mount --make-rprivate /
mkdir "$1/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
cd "$1/root"
mount --rbind /dev dev
mount --rbind /sys sys
mount -t proc proc proc
mount -t tmpfs tmpfs run
mount -t tmpfs tmpfs tmp
mkdir -m 755 run/sshd
read -r _
pivot_root . mnt
umount -l /mnt
if [ -e ~root/.bashrc ]; then mount --bind /dev/null ~root/.bashrc; fi
exec /usr/sbin/sshd -D -e -f /etc/ssh/test_config </dev/null"#;

/// One host.
struct SshHost {
    process: Child,
    name: String,
    address: String,
    /// Its files: `upper` has everything that differs from this machine.
    directory: PathBuf,
}

/// Hosts on one network, and the namespace of their coordinator.
pub(crate) struct SshHosts {
    /// Holds the network of the coordinator, in which the bridge is.
    hub: Child,
    hosts: Vec<SshHost>,
    files: TestDirectory,
}

impl SshHosts {
    /// Starts hosts `n1` and so on, and waits until all of them accept connections.
    pub(crate) fn start(count: usize) -> Self {
        let files = scratch::directory();
        let hub = spawn(Command::new("unshare").args(["--net", "--kill-child", "--fork", "sleep", "infinity"]), None);
        generate_key(&files.path().join("user_key"));
        let mut started = Self { hub, hosts: Vec::new(), files };
        strip_program(Path::new(BINARY), &started.program());
        started.hosts = (1..=count).map(|number| started.start_host(number)).collect();
        started.connect_network();
        started.wait_until_listening();
        started
    }

    /// The program of the coordinator. Without its debugging information, it is copied to the hosts in a fraction of the time.
    pub(crate) fn program(&self) -> PathBuf {
        self.files.path().join("farfork")
    }

    /// Adds `farfork-bench` to the programs of the coordinator.
    pub(crate) fn add_bench_program(&self) {
        const NAME: &str = "farfork-bench";
        strip_program(&Path::new(BINARY).with_file_name(NAME), &self.program().with_file_name(NAME));
    }

    fn start_host(&self, number: usize) -> SshHost {
        let (name, address) = (format!("n{number}"), format!("10.99.0.{number}"));
        let directory = self.files.path().join(&name);
        let etc = directory.join("upper/etc/ssh");
        fs::create_dir_all(&etc).expect("a directory can be created");
        fs::create_dir(directory.join("work")).expect("a directory can be created");
        generate_key(&etc.join("test_host_key"));
        fs::copy(self.files.path().join("user_key.pub"), etc.join("test_authorized_keys")).expect("a small file");
        let config = "HostKey /etc/ssh/test_host_key\nAuthorizedKeysFile /etc/ssh/test_authorized_keys\nPidFile none\n\
                      UsePAM no\nPermitRootLogin prohibit-password\nPasswordAuthentication no\n\
                      KbdInteractiveAuthentication no\nStrictModes no\n";
        fs::write(etc.join("test_config"), config).expect("a small file can be written");
        let mut command = Command::new("unshare");
        command.args(["--net", "--mount", "--pid", "--uts", "--fork", "--kill-child", "--"]);
        command.args(["sh", "-c", HOST_SCRIPT, "sh"]).arg(&directory).stdin(Stdio::piped());
        let log = File::create(directory.join("sshd.log")).expect("a file can be created");
        SshHost { process: spawn(&mut command, Some(log)), name, address, directory }
    }

    /// Makes a bridge in the network of the coordinator, and a link from each host to it. Then lets sshd start.
    fn connect_network(&mut self) {
        let mut plan =
            "link set lo up\nlink add br0 type bridge\naddress add 10.99.0.254/24 dev br0\nlink set br0 up\n"
                .to_owned();
        for host in &self.hosts {
            let (name, pid) = (&host.name, host.process.id());
            // Before, the link would be added to the network of this process.
            wait_for_network(pid);
            let _ =
                writeln!(plan, "link add {name} type veth peer name eth0 netns {pid}\nlink set {name} master br0 up");
        }
        run_ip(self.hub.id(), &plan);
        for host in &mut self.hosts {
            let address = &host.address;
            let plan = format!("link set lo up\naddress add {address}/24 dev eth0\nlink set eth0 up\n");
            run_ip(host.process.id(), &plan);
            // The end of the pipe releases the script, too.
            drop(host.process.stdin.take().map(|mut input| std::io::Write::write_all(&mut input, b"\n")));
        }
    }

    fn wait_until_listening(&self) {
        let network = File::open(format!("/proc/{}/ns/net", self.hub.id())).expect("the namespace exists");
        for host in &self.hosts {
            wait::wait_until(&format!("sshd of {} listens", host.name), READY_LIMIT, || {
                let connect = || {
                    namespace::enter_network(network.as_fd())?;
                    TcpStream::connect((host.address.as_str(), 22))
                };
                thread::scope(|scope| scope.spawn(connect).join()).expect("no panic").ok()
            });
        }
    }

    /// Writes an inventory of all hosts: these tables come first, then the hosts. Returns its path.
    pub(crate) fn write_inventory(&self, tables: &str, more_hosts: &str) -> PathBuf {
        let known_hosts: String = self.hosts.iter().map(|host| host.known_host_line(&host.host_key())).collect();
        fs::write(self.files.path().join("known_hosts"), known_hosts).expect("a small file can be written");
        let mut text =
            format!("known_hosts = \"known_hosts\"\n{tables}\n[defaults]\nuser = \"root\"\nkey = \"user_key\"\n");
        for SshHost { name, address, .. } in &self.hosts {
            let _ = write!(text, "[[hosts]]\nname = \"{name}\"\naddress = \"{address}\"\ntraffic = [\"eth0\"]\n");
        }
        let path = self.files.path().join("hosts.toml");
        fs::write(&path, text + more_hosts).expect("a small file can be written");
        path
    }

    /// Gives the first host the key of the second one in the file of known hosts.
    pub(crate) fn swap_known_host_keys(&self) {
        let [first, second] = &self.hosts[..2] else { panic!("two hosts") };
        let text = first.known_host_line(&second.host_key()) + &second.known_host_line(&first.host_key());
        fs::write(self.files.path().join("known_hosts"), text).expect("a small file can be written");
    }

    /// The command `farfork` in the network of the coordinator.
    pub(crate) fn coordinator(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", self.hub.id())).arg(self.program()).args(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs `farfork` in the network of the coordinator to its end.
    pub(crate) fn run_coordinator(&self, arguments: &[&str]) -> CommandOutput {
        let child = self.coordinator(arguments).spawn().expect("nsenter(1) runs");
        wait::wait_with_output(child, &arguments.join(" "), COMMAND_LIMIT)
    }

    /// A program in all namespaces of a host. Hosts count from 0.
    pub(crate) fn command_on(&self, index: usize, program: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--target={}", self.first_process(index)));
        command.args(["--mount", "--net", "--pid", "--uts", "--root", "--wd"]).args(program);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs a program on a host, and requires success. Returns its standard output.
    #[track_caller]
    pub(crate) fn run_on(&self, index: usize, program: &[&str]) -> String {
        let child = self.command_on(index, program).spawn().expect("nsenter(1) runs");
        let output = wait::wait_with_output(child, &program.join(" "), COMMAND_LIMIT);
        assert!(output.status.success(), "{program:?}: {}{}", output.stdout, output.stderr);
        output.stdout
    }

    /// A path of a host, as this process sees it.
    pub(crate) fn path_on(&self, index: usize, path: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{path}", self.first_process(index)))
    }

    /// Returns what a host has beyond what it had at its start: files, and processes other than sshd.
    pub(crate) fn changes_on(&self, index: usize) -> Vec<String> {
        let mut changes = Vec::new();
        list_files(&self.hosts[index].directory.join("upper"), &mut changes);
        list_files(&self.path_on(index, "/run"), &mut changes);
        list_files(&self.path_on(index, "/tmp"), &mut changes);
        changes.retain(|path| !path.contains("/etc/ssh/test_"));
        let namespace = |pid: i32| fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
        let own = namespace(self.first_process(index));
        let pids = fs::read_dir("/proc").expect("/proc is mounted").flatten();
        let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        let ours = pids.filter(|pid| namespace(*pid) == own && leftovers::is_alive(*pid));
        let commands = ours.map(leftovers::command_line).filter(|command| !command.starts_with("sshd: "));
        changes.extend(commands.filter(|command| !command.contains("/usr/sbin/sshd")));
        changes
    }

    /// The first process of a host's namespaces: the only child of unshare(1).
    fn first_process(&self, index: usize) -> i32 {
        let unshare = self.hosts[index].process.id();
        let children = fs::read_to_string(format!("/proc/{unshare}/task/{unshare}/children"));
        children.expect("unshare(1) runs").trim().parse().expect("one child")
    }
}

impl SshHost {
    fn host_key(&self) -> String {
        fs::read_to_string(self.directory.join("upper/etc/ssh/test_host_key.pub")).expect("the key exists")
    }

    fn known_host_line(&self, key: &str) -> String {
        format!("{} {key}", self.address)
    }
}

impl Drop for SshHosts {
    fn drop(&mut self) {
        for host in &mut self.hosts {
            if thread::panicking() {
                let mut text = String::new();
                let _ = File::open(host.directory.join("sshd.log")).and_then(|mut log| log.read_to_string(&mut text));
                let lines: Vec<&str> = text.lines().collect();
                let tail = lines[lines.len().saturating_sub(LOG_LINES_MAX)..].join("\n");
                print_error(format_args!("-- sshd of {}:\n{tail}", host.name));
            }
            // unshare(1) kills the first process, and the kernel all others in the namespace.
            let _ = host.process.kill();
            wait::reap_killed(&mut host.process);
        }
        let _ = self.hub.kill();
        wait::reap_killed(&mut self.hub);
    }
}

fn spawn(command: &mut Command, log: Option<File>) -> Child {
    let log = log.map_or_else(Stdio::null, Stdio::from);
    command.stdout(Stdio::null()).stderr(log).spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

/// Waits until a process has its own network. Returns its path.
fn wait_for_network(pid: u32) -> PathBuf {
    let own = fs::read_link("/proc/self/ns/net").expect("/proc is mounted");
    let network = PathBuf::from(format!("/proc/{pid}/ns/net"));
    wait::wait_until("a network namespace", READY_LIMIT, || (fs::read_link(&network).ok()? != own).then_some(()));
    network
}

/// Runs commands of ip(8) in the network of a process. Waits until the process has its own network.
fn run_ip(pid: u32, plan: &str) {
    let mut command = Command::new("nsenter");
    command.arg(format!("--net={}", wait_for_network(pid).display())).args(["ip", "-batch", "-"]);
    let mut child = command.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("nsenter(1) runs");
    std::io::Write::write_all(&mut child.stdin.take().expect("it is piped"), plan.as_bytes()).expect("a short text");
    let output = wait::wait_with_output(child, "ip -batch", COMMAND_LIMIT);
    assert!(output.status.success(), "{plan}: {}", output.stderr);
}

fn generate_key(path: &Path) {
    let output = Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(path).output();
    let output = output.expect("ssh-keygen(1) is installed: run scripts/setup.sh");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn strip_program(from: &Path, to: &Path) {
    let output = Command::new("strip").arg("-o").arg(to).arg(from).output().expect("strip(1) is installed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Adds all files below a directory to the list, and the directories that are named after farfork.
fn list_files(directory: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let (path, is_directory) = (entry.path(), entry.file_type().is_ok_and(|kind| kind.is_dir()));
        if !is_directory || entry.file_name().to_string_lossy().contains("farfork") {
            found.push(path.display().to_string());
        }
        if is_directory {
            list_files(&path, found);
        }
    }
}
