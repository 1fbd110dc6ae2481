//! Checks of the processor, the kernel, the rights of this process, and the control groups.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::Path;
use std::thread;

use farfork_container::LIMIT_CONTROLLERS;
use farfork_sys::cgroup::hierarchy;
use farfork_sys::namespace;
use farfork_sys::pagemap::{PageTables, ScanDetail};
use farfork_sys::process::{ProcStatus, is_same_open_file};
use farfork_sys::userfaultfd::{UffdFeatures, Userfaultfd};
use rustix::mount::FsOpenFlags;

use super::finding::HostFinding;

const AS_ROOT: &str = "run as root; in a container, start the container with --privileged";

/// The capabilities that a daemon needs: bit (capabilities(7)), name and use.
const CAPABILITIES: [(u32, &str, &str); 5] = [
    (5, "CAP_KILL", "to stop processes"),
    (12, "CAP_NET_ADMIN", "for networks of children"),
    (19, "CAP_SYS_PTRACE", "to read memory"),
    (21, "CAP_SYS_ADMIN", "for namespaces and mounts"),
    (40, "CAP_CHECKPOINT_RESTORE", "for process ids"),
];

/// The place of the effective set in `ProcStatus::capabilities`.
const EFFECTIVE: usize = 2;

pub(super) fn check() -> Vec<HostFinding> {
    vec![
        check_architecture(),
        check_capabilities(),
        check_page_scan(),
        check_userfaultfd(),
        check_checkpoint_restore(),
        check_kcmp(),
        check_ptrace(),
        check_namespaces(),
        check_cgroups(),
        check_overlay(),
        check_fuse(),
    ]
}

fn check_architecture() -> HostFinding {
    match std::env::consts::ARCH {
        "x86_64" => HostFinding::ok("processor", "x86-64"),
        other => HostFinding::problem("processor", other, "use an x86-64 machine"),
    }
}

fn check_capabilities() -> HostFinding {
    let effective = ProcStatus::read(own_pid()).map_or(0, |status| status.capabilities[EFFECTIVE]);
    let missing = missing_capabilities(effective);
    if missing.is_empty() {
        return HostFinding::ok("capabilities", "all that a daemon needs");
    }
    HostFinding::problem("capabilities", format!("missing: {}", missing.join(", ")), AS_ROOT)
}

/// Returns the needed capabilities that an effective set lacks.
fn missing_capabilities(effective: u64) -> Vec<String> {
    let missing = CAPABILITIES.iter().filter(|(bit, ..)| effective >> bit & 1 == 0);
    missing.map(|(_, name, purpose)| format!("{name} {purpose}")).collect()
}

fn own_pid() -> i32 {
    std::process::id().cast_signed()
}

/// PAGEMAP_SCAN, since Linux 6.7, is the newest facility that a daemon needs.
fn check_page_scan() -> HostFinding {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let scanned = PageTables::open(own_pid())
        .and_then(|mut tables| tables.scan_populated(0, 1 << 12, ScanDetail::Owner, &mut Vec::new()));
    match scanned {
        Ok(()) => HostFinding::ok("kernel", format!("Linux {release}")),
        Err(error) => {
            let found = format!("Linux {release}: PAGEMAP_SCAN fails: {error}");
            HostFinding::problem("kernel", found, "install Linux 6.7 or later, with CONFIG_PROC_PAGE_MONITOR")
        }
    }
}

fn check_userfaultfd() -> HostFinding {
    let created = Userfaultfd::create().and_then(|uffd| uffd.enable(UffdFeatures::ALL_EVENTS));
    let remedy = format!("use a kernel with CONFIG_USERFAULTFD; {AS_ROOT}");
    HostFinding::of_result("userfaultfd", created.map(|_| "available, with events"), &remedy)
}

/// `ns_last_pid` exists exactly if the kernel has CONFIG_CHECKPOINT_RESTORE, which also permits the restore of memory maps
/// (PR_SET_MM, see prctl(2)).
fn check_checkpoint_restore() -> HostFinding {
    if Path::new("/proc/sys/kernel/ns_last_pid").exists() {
        return HostFinding::ok("checkpoint", "available");
    }
    HostFinding::problem("checkpoint", "the kernel has no CONFIG_CHECKPOINT_RESTORE", "use a kernel with this option")
}

fn check_kcmp() -> HostFinding {
    let compared = is_same_open_file(own_pid(), 0, 0);
    let remedy = "use a kernel with CONFIG_KCMP; in a container, permit kcmp(2) in the seccomp profile";
    HostFinding::of_result("kcmp", compared.map(|_| "available"), remedy)
}

fn check_ptrace() -> HostFinding {
    match fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default().trim() {
        "3" => {
            let remedy = "set kernel.yama.ptrace_scope to 1 in /etc/sysctl.d, and reboot";
            HostFinding::problem("ptrace", "kernel.yama.ptrace_scope is 3: no process can be traced", remedy)
        }
        _ => HostFinding::ok("ptrace", "permitted"),
    }
}

/// A child has namespaces for processes, mounts, IPC, its host name and, with some options, its network. Time namespaces
/// keep its clocks continuous.
fn check_namespaces() -> HostFinding {
    if !Path::new("/proc/self/ns/time").exists() {
        let found = "the kernel has no time namespaces";
        return HostFinding::problem("namespaces", found, "use a kernel with CONFIG_TIME_NS");
    }
    let in_thread = thread::spawn(|| namespace::unshare_container(true)).join();
    let created = in_thread.unwrap_or_else(|_| Err(io::Error::other("the thread panicked")));
    let remedy = format!("raise the limits: sysctl user.max_net_namespaces=100000; {AS_ROOT}");
    HostFinding::of_result("namespaces", created.map(|()| "can be created"), &remedy)
}

fn check_cgroups() -> HostFinding {
    let hierarchies = match hierarchy::mounted_hierarchies() {
        Ok(hierarchies) if !hierarchies.is_empty() => hierarchies,
        found => {
            let found = found.err().map_or_else(|| "no hierarchy is mounted".to_owned(), |error| error.to_string());
            return HostFinding::problem("cgroups", found, "mount -t cgroup2 cgroup2 /sys/fs/cgroup");
        }
    };
    let available = |name: &str| hierarchies.iter().any(|hierarchy| hierarchy.has_controller(name));
    let missing: Vec<_> = LIMIT_CONTROLLERS.into_iter().filter(|name| !available(name)).collect();
    if missing.is_empty() {
        return HostFinding::ok("cgroups", format!("{} can be limited", LIMIT_CONTROLLERS.join(", ")));
    }
    let found = format!("children cannot be limited by {}", missing.join(", "));
    let remedy = "enable the controllers in cgroup.subtree_control of the parent group; under systemd, set Delegate=yes and DelegateSubgroup=farfork-daemon";
    HostFinding::warning("cgroups", found, remedy)
}

fn check_overlay() -> HostFinding {
    // As a daemon does. The kernel loads the module at the first use.
    let opened = rustix::mount::fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC);
    HostFinding::of_result("overlay", opened.map(|_| "available"), &format!("modprobe overlay; {AS_ROOT}"))
}

fn check_fuse() -> HostFinding {
    match OpenOptions::new().read(true).write(true).open("/dev/fuse") {
        Ok(_) => HostFinding::ok("fuse", "available"),
        Err(error) => {
            let found = format!("volumes cannot be mounted: /dev/fuse: {error}");
            HostFinding::warning("fuse", found, "modprobe fuse; in a container, give it the device /dev/fuse")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{CAPABILITIES, missing_capabilities};

    #[test]
    fn missing_capabilities_are_named() {
        let all = 0x1ff_ffff_ffff;
        assert_eq!(missing_capabilities(all), Vec::<String>::new());
        assert_eq!(missing_capabilities(all & !(1 << 19)), ["CAP_SYS_PTRACE to read memory"]);
        assert_eq!(missing_capabilities(0).len(), CAPABILITIES.len());
    }
}
