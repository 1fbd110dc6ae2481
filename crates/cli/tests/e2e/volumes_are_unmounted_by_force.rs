//! `farfork volume umount`: a volume whose replicas are all dead is unmounted and dropped by force. `mount --protect` keeps
//! programs from writing to the directory under the mount.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use farfork_sys::mount::table::read_own_mounts;
use farfork_sys::pidfd;
use farfork_sys::process::{ProcStatus, SystemCall};
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::Signal;
use serde_json::json;

use crate::harness::{Cluster, LineProgram, programs, scratch, wait};
use crate::test::Test;
use crate::volumes_are_replicated::{VolumeMount, volume_processes};

pub(crate) const TESTS: &[Test] = &[
    Test::alone("a_volume_without_live_replicas_is_unmounted_and_dropped", without_live_replicas),
    Test::alone("a_protected_directory_gets_no_files_of_the_volume", protected_directory),
];

const LIMIT: Duration = Duration::from_secs(60);

/// Changes more of a mapping than the log holds, waits for its input to end, and writes the mapping back.
const MAPPING: &str = "\
import mmap, os, sys
descriptor = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.truncate(descriptor, 16 << 20)
pages = mmap.mmap(descriptor, 16 << 20)
pages[:] = b'x' * len(pages)
print('mapped', flush=True)
sys.stdin.read()
pages.flush()
";

/// The program waits until its pages are written back, and the log is full: SIGKILL does not end it.
fn without_live_replicas() {
    const MSYNC: u64 = 26;
    let cluster = Cluster::start(3);
    let directory = scratch::directory();
    let create = ["volume", "create", "data", "--replicas", &cluster.names(&[0, 1, 2]), "--log-size", "8MiB"];
    cluster.first().json(&create);
    let mount = VolumeMount::new(&cluster, 0, "data", directory.path());
    let mut program =
        LineProgram::start(Command::new(programs::python()).args(["-c", MAPPING]).arg(mount.path("file")))
            .expect("python");
    program.read_until("mapped", LIMIT).expect("a mapping");
    (0..3).for_each(|node| cluster.kill_daemon(node));
    program.write_input("").expect("the program reads");
    wait::wait_until("the program writes the mapping back", LIMIT, || {
        let call = SystemCall::read(program.pid()).expect("the program waits")?;
        (call.number == MSYNC).then_some(())
    });
    program.signal(Signal::KILL);
    wait::wait_until("the program waits although it is killed", LIMIT, || {
        let status = ProcStatus::read(program.pid()).expect("the program waits");
        (status.state == "D" && status.signals_pending != 0).then_some(())
    });

    let mount_point = mount.path("").components().collect::<PathBuf>();
    let unmounted = cluster.first().json(&["volume", "umount", "--force", &mount_point.to_string_lossy()]);
    assert_eq!(unmounted, json!({ "directory": mount_point, "unmounted": true }));
    program.kill(LIMIT);
    assert!(read_own_mounts().expect("mounts").iter().all(|mount| mount.point != mount_point));

    cluster.restart_daemon(0);
    let dropped = cluster.first().json(&["volume", "drop", "data", "--force"]);
    let remaining = dropped["remaining_files"].as_str().expect("a reason");
    assert!(remaining.contains("n2") && remaining.contains("n3") && !remaining.contains("n1"), "{remaining}");
    assert_eq!(cluster.first().json(&["volume", "ls"]), json!({ "volumes": [] }));
    // The files that remain prevent no volume of the same name.
    (1..3).for_each(|node| cluster.restart_daemon(node));
    cluster.first().json(&create);
    let mount = VolumeMount::new(&cluster, 1, "data", directory.path());
    assert_eq!(fs::read_dir(mount.path("")).expect("the new volume").count(), 0);
    mount.end();
}

fn protected_directory() {
    let cluster = Cluster::start(1);
    let directory = scratch::directory();
    let mount_point = directory.path().join("mount");
    let point = mount_point.to_string_lossy().into_owned();
    fs::create_dir(&mount_point).expect("a directory to mount at");
    cluster.first().json(&["volume", "create", "data", "--replicas", &cluster.names(&[0])]);
    let mount = || cluster.first().json(&["volume", "mount", "data", &point, "--protect"]);

    // umount -l while a program uses the volume.
    mount();
    let opened = File::create(mount_point.join("file")).expect("a file of the volume");
    let user = format!("process {} (", std::process::id());
    cluster.first().run_failing(&["volume", "umount", &point]).require_mentions(&[&point, &user, "--force"]);
    unmount(&mount_point, UnmountFlags::DETACH).expect("umount -l");
    require_protected(&mount_point);
    drop(opened);
    wait::wait_until("the directory is writable again", LIMIT, || fs::write(mount_point.join("local"), b"").ok());

    // The supervisor is killed, so it cannot end the protection.
    mount();
    for process in volume_processes(&mount_point) {
        if let Ok(pidfd) = pidfd::open(process) {
            // The kernel kills the processes of a dead supervisor.
            let _ = pidfd::send_signal(&pidfd, Signal::KILL.as_raw());
        }
    }
    wait::wait_until("the mount has ended", LIMIT, || volume_processes(&mount_point).is_empty().then_some(()));
    unmount(&mount_point, UnmountFlags::DETACH).expect("umount");
    require_protected(&mount_point);
    let released = cluster.first().json(&["volume", "umount", &point]);
    assert_eq!(released, json!({ "directory": mount_point, "unmounted": false }));
    fs::write(mount_point.join("local"), b"").expect("the directory is writable");
    cluster.first().run_failing(&["volume", "umount", &point]).require_mentions(&[&point, "no volume", "/proc/mounts"]);
    mount();
    let unmounted = cluster.first().json(&["volume", "umount", &point]);
    assert_eq!(unmounted, json!({ "directory": mount_point, "unmounted": true }));
    fs::remove_file(mount_point.join("local")).expect("the directory is writable");
}

/// A program that opens a file of the volume again creates no local file.
fn require_protected(mount_point: &Path) {
    let error = fs::write(mount_point.join("file"), b"lost").expect_err("the directory is immutable");
    assert_eq!(error.kind(), ErrorKind::PermissionDenied);
}
