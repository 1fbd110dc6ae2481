//! A user changes a file as root of a user namespace, to which some users of the node are mapped, after another node has changed
//! the owner of the file.

use std::fs::{self, File, Permissions};
use std::io::{BufRead as _, BufReader, Lines, Write as _, stdin};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use farfork_sys::user_namespace::{IdRange, write_id_maps};
use rustix::fs::{Mode, OFlags, XattrFlags, fchmod, fchown, fsetxattr, futimens, openat};
use rustix::io::Errno;
use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_res_gid, set_thread_res_uid};

use super::real_programs::ProcessMain;
use super::replaced_paths::{mounted_pair, set_times};

/// The tests of this file.
pub(crate) const TESTS: &[(&str, fn())] =
    &[("root_of_a_user_namespace_changes_files_of_present_owners_in_it_only", lost_ownership)];

/// Processes of this file.
pub(crate) const PROCESSES: &[(&str, ProcessMain)] = &[("namespace-root", run_namespace_root)];

/// Root of the namespace is this user of the node. The next user is in the namespace, too.
const USER: u32 = 4000;
const ROUNDS: u32 = 5;
/// EPERM for three calls of the owner, and EACCES without the permission to write.
const REFUSED: &str = "[1, 1, 1, 13]";

/// A process in a user namespace, which has opened a file.
struct NamespaceRoot {
    process: Child,
    answers: Lines<BufReader<ChildStdout>>,
}

impl NamespaceRoot {
    fn open(directory: &Path, name: &str) -> Self {
        let program = std::env::current_exe().unwrap();
        let mut command = Command::new("unshare");
        command.args(["--user", "--keep-caps"]).arg(program).args([super::PROCESS, "namespace-root"]);
        command.arg(directory).arg(name).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let answers = BufReader::new(process.stdout.take().unwrap()).lines();
        let mut root = Self { process, answers };
        assert_eq!(root.receive(), "started");
        write_id_maps(root.process.id().cast_signed(), IdRange { first: USER, count: 2 }).unwrap();
        assert_eq!(root.make_calls(), "opened");
        root
    }

    /// Makes the process continue, and returns its answer.
    fn make_calls(&mut self) -> String {
        self.process.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        self.receive()
    }

    fn receive(&mut self) -> String {
        self.answers.next().expect("the process answers").unwrap()
    }
}

impl Drop for NamespaceRoot {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Opens a file, and changes it for each line of standard input. Prints the result of each call.
fn run_namespace_root(arguments: &[String]) {
    let wait = || stdin().read_line(&mut String::new()).is_ok_and(|bytes| bytes > 0);
    // Still the user who owns the directories above the mount.
    let directory = File::open(&arguments[0]).unwrap();
    println!("started");
    wait();
    set_thread_res_gid(Gid::ROOT, Gid::ROOT, Gid::ROOT).unwrap();
    set_thread_res_uid(Uid::ROOT, Uid::ROOT, Uid::ROOT).unwrap();
    let file = openat(&directory, &arguments[1], OFlags::RDONLY, Mode::empty()).unwrap();
    println!("opened");
    while wait() {
        let results = [
            fchown(&file, Some(Uid::ROOT), Some(Gid::ROOT)),
            fchmod(&file, Mode::from_raw_mode(0o644)),
            futimens(&file, &set_times(7)),
            fsetxattr(&file, "user.name", b"value", XattrFlags::empty()),
        ];
        println!("{:?}", results.map(|result| result.map_or_else(Errno::raw_os_error, |()| 0)));
    }
}

fn lost_ownership() {
    let (cluster, here, there) = mounted_pair();
    let give = |path: &PathBuf, user| {
        chown(path, Some(user), Some(user)).unwrap();
        fs::set_permissions(path, Permissions::from_mode(0o600)).unwrap();
    };
    for round in 0..ROUNDS {
        let name = format!("file-{round}");
        let (path, other_path) = (here.join(&name), there.join(&name));
        fs::write(&path, "data").unwrap();
        give(&path, USER);
        assert_eq!(fs::metadata(&other_path).unwrap().uid(), USER, "round {round}");
        let mut root = NamespaceRoot::open(&there, &name);
        give(&path, 0);
        assert_eq!(root.make_calls(), REFUSED, "round {round}");
        give(&path, USER + 1);
        // The kernel itself refuses the calls until it has the new owner.
        cluster.nodes[1].wait_for("root of the namespace changes the file", || root.make_calls() == "[0, 0, 0, 0]");
    }
}
