//! `farfork run` starts a program under a name, or with its memory in huge pages. In all other respects the program
//! behaves as if its user had started it.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::harness::memory::huge_kb;
use crate::harness::{BINARY, Cluster, Parent, Program, Seed, scratch, wait};
use crate::test::Test;

pub(crate) const TESTS: &[Test] = &[
    Test::shared("under_a_name", under_a_name),
    Test::shared("in_huge_pages", in_huge_pages),
    Test::shared("with_the_programs_exit_status", own_status),
];

/// Longest wait until the collapser has found a process's memory and collapsed most of it, on a busy machine.
const HUGE_LIMIT: Duration = Duration::from_secs(100);

/// Longest wait until the collapser has noticed the end of its process.
const END_LIMIT: Duration = Duration::from_secs(60);

/// Private memory of the parent, in MiB.
const MIB: &str = "32";

/// Minimum memory of the parent in huge pages, in KiB. Unaligned ends stay in small pages, and the kernel may fail to
/// collapse some ranges.
const HUGE_KB_MIN: u64 = 24 << 10;

/// Makes a command that starts a program by `farfork run`. Names of programs are kept in a run directory of the test.
fn run(run_dir: &Path, options: &[&str]) -> Command {
    let program = Program::Waits.command();
    let mut command = Command::new(BINARY);
    command.env("FARFORK_RUN_DIR", run_dir).arg("run").args(options).arg("--").arg(program.get_program()).arg(MIB);
    command
}

fn under_a_name(cluster: &Cluster) {
    let names = scratch::directory();
    let mut parent = Parent::start_command(&mut run(names.path(), &["--name", "warm"]));
    let taken = run(names.path(), &["--name", "warm"]).output().expect("the binary under test");
    let said = String::from_utf8_lossy(&taken.stderr);
    assert!(!taken.status.success() && said.contains("warm") && said.contains(&parent.pid_text()), "{said}");

    let mut prepare = cluster.first().command(&["prepare", "warm", "--json"]);
    let prepared = prepare.env("FARFORK_RUN_DIR", names.path()).output().expect("the binary under test");
    let seed = Seed::from_json(cluster.first(), &String::from_utf8_lossy(&prepared.stdout));
    seed.fork_and_check(&parent, 1, &["--to", cluster.name(1)]);
    parent.require_unharmed();
}

/// The program is linked statically, and does not request huge pages itself.
fn in_huge_pages(cluster: &Cluster) {
    let names = scratch::directory();
    let mut parent = Parent::start_command(&mut run(names.path(), &["--huge"]));
    let pid = parent.pid();
    let tender = tender_of(pid).expect("a process collapses the program's memory");
    wait::wait_until("its memory is in huge pages", HUGE_LIMIT, || (huge_kb(pid) >= HUGE_KB_MIN).then_some(()));
    parent.require_unharmed();

    let seed = Seed::prepare(cluster.first(), &parent);
    seed.fork_and_check(&parent, 1, &["--to", cluster.name(1)]);
    seed.fork_and_check(&parent, 2, &[]);
    // Pages of a child are fetched as small pages, and then collapsed.
    let child = seed.fork_idle(1, &["--to", cluster.name(1), "--strategy", "eager"]).remove(0);
    wait::wait_until("a child's memory is in huge pages", HUGE_LIMIT, || {
        (huge_kb(child.pid) >= HUGE_KB_MIN).then_some(())
    });
    cluster.first().json(&["kill", &child.id]);
    parent.require_unharmed();
    drop(parent);
    wait::wait_until("the collapser of the ended program ends", END_LIMIT, || {
        (!Path::new(&format!("/proc/{tender}")).exists()).then_some(())
    });
}

fn own_status(_: &Cluster) {
    let shell = |script: &str| {
        let mut command = Command::new(BINARY);
        command.args(["run", "--huge", "--", "sh", "-c", script]).stdin(Stdio::null());
        command.output().expect("the binary under test")
    };
    let ended = shell("echo $GLIBC_TUNABLES; echo $$; exit 7");
    let said = String::from_utf8_lossy(&ended.stdout).into_owned();
    assert_eq!(ended.status.code(), Some(7), "{said}");
    assert!(said.starts_with("glibc.malloc.hugetlb=1\n"), "{said}");
    // The program has no child that it did not start.
    let children = shell("cat /proc/$$/task/$$/children; true");
    assert_eq!(String::from_utf8_lossy(&children.stdout).split_whitespace().count(), 1, "`cat` is not the only child");

    let missing = Command::new(BINARY).args(["run", "--", "/no/such/program"]).output().expect("the binary under test");
    assert_eq!(missing.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&missing.stderr).contains("/no/such/program"));
}

/// Returns the process that collapses the memory of a parent (`farfork tend`).
fn tender_of(pid: i32) -> Option<i32> {
    let wanted = format!("tend\0{pid}@");
    let pids = fs::read_dir("/proc").expect("/proc").filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.filter(|pid: &i32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(&wanted)
    })
    .max()
}
