//! `farfork run` starts a program under a name, with its memory in huge pages, or with a directory as its root. In all
//! other respects the program behaves as if its user had started it.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, TryRecvError};
use std::thread;
use std::time::Duration;

use crate::harness::memory::huge_kb;
use crate::harness::scratch::TestDirectory;
use crate::harness::{BINARY, Cluster, Parent, Program, Seed, scratch, wait};
use crate::test::Test;

pub(crate) const TESTS: &[Test] = &[
    Test::shared("under_a_name", under_a_name),
    Test::shared("in_huge_pages", in_huge_pages),
    Test::shared("with_the_programs_exit_status", own_status),
    Test::shared("in_a_root_directory", root_directory),
    Test::shared("children_may_have_another_root_directory", other_root_directory),
    Test::shared("children_have_their_parents_files_in_any_root_directory", other_files_in_root),
    Test::shared("many_children_start_at_once_in_a_root_directory", many_in_root),
    Test::shared("an_unsuitable_root_directory_is_refused", unsuitable_root),
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

    let mut fork = cluster.first().command(&["fork", "warm"]);
    let forked = fork.env("FARFORK_RUN_DIR", names.path()).output().expect("the binary under test");
    let said = String::from_utf8_lossy(&forked.stderr);
    assert!(!forked.status.success() && said.contains("`farfork prepare warm`"), "{said}");

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

/// A directory with the test's program, a file with this content, and mount points for the kernel's file systems.
fn make_root(content: &str) -> TestDirectory {
    let root = scratch::directory();
    for point in ["proc", "sys", "dev"] {
        fs::create_dir(root.path().join(point)).expect("an empty directory");
    }
    fs::copy(Program::Waits.command().get_program(), root.path().join("program")).expect("a static program");
    fs::write(root.path().join("content"), content).expect("space");
    root
}

/// Starts the test's program with a directory as its root, and with open files of the kernel.
fn start_in_root(root: &Path) -> Parent {
    start_program_in_root(root, "/program")
}

fn start_program_in_root(root: &Path, program: &str) -> Parent {
    let mut command = Command::new("bash");
    command.args(["-c", r#"exec "$@" 5< /dev/null 6< /proc/version"#, "bash", BINARY, "run", "--root"]);
    Parent::start_command(command.arg(root).args(["--", program, MIB]))
}

/// The root directory of a process.
fn root_of(pid: i32) -> PathBuf {
    format!("/proc/{pid}/root").into()
}

/// The names in a directory.
fn names_in(directory: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(directory).expect("a directory");
    entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect()
}

fn content_of_root(pid: i32) -> String {
    fs::read_to_string(root_of(pid).join("content")).expect("a file in the root")
}

fn names(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(ToString::to_string).collect()
}

/// The node's root and its other mounts are invisible to the parent and its children. Children of a child have the same
/// root.
fn root_directory(cluster: &Cluster) {
    let root = make_root("node");
    let mut parent = start_in_root(root.path());
    assert_eq!(names_in(&root_of(parent.pid())), names(&["content", "dev", "proc", "program", "sys"]));
    let seed = Seed::prepare(cluster.first(), &parent);
    let (first, second) = (cluster.name(0), cluster.name(1));
    for index in [0, 1] {
        let to = cluster.name(index);
        seed.fork_and_check(&parent, 3, &["--to", to]);
        let child = seed.fork_idle(1, &["--to", to]).remove(0);
        let listed = cluster.first().json(&["inspect", &child.id]);
        assert_eq!(listed["root"].as_str().map(Path::new), Some(root.path()), "{listed}");
        assert_eq!(names_in(&root_of(child.pid)), names(&["content", "dev", "proc", "program", "run", "sys"]));
        fs::write(root_of(child.pid).join("content"), "child").expect("the child's own file");
        assert_eq!(content_of_root(parent.pid()), "node", "the parent sees a write of its child");

        let descendant = Seed::prepare_process(cluster.node(index), &child.pid.to_string(), &[]);
        descendant.fork_and_check(&parent, 4, &["--to", second]);
        let grandchild = descendant.fork_idle(1, &["--to", first]).remove(0);
        assert_eq!((content_of_root(grandchild.pid), content_of_root(child.pid)), ("node".into(), "child".into()));
        cluster.first().json(&["kill", &grandchild.id, &child.id]);
    }
    parent.require_unharmed();
    drop(parent);
    assert_eq!(names_in(root.path()), names(&["content", "dev", "proc", "program", "sys"]));
}

fn other_root_directory(cluster: &Cluster) {
    let (root, other) = (make_root("first"), make_root("other"));
    let mut parent = start_in_root(root.path());
    let seed = Seed::prepare(cluster.first(), &parent);
    let second = cluster.name(1);
    let path = other.path().to_str().expect("UTF-8");
    let child = seed.fork_idle(1, &["--to", second, "--root", path]).remove(0);
    assert_eq!(content_of_root(child.pid), "other");
    seed.fork_and_check(&parent, 5, &["--to", second, "--root", path]);
    seed.fork_and_check(&parent, 5, &["--to", second, "--root", path, "--untrusted", "--user-namespace"]);
    seed.fork_and_check(&parent, 5, &["--to", second, "--root", path, "--read-only", "--memory", "1GiB"]);
    cluster.first().json(&["kill", &child.id]);

    // A parent in the node's root. The other root lacks its program, but has its working directory.
    let mut plain = Parent::start_command(Program::Waits.command().arg(MIB).current_dir("/"));
    let plain_seed = Seed::prepare(cluster.first(), &plain);
    plain_seed.fork_and_check(&plain, 6, &["--to", second, "--root", path]);
    let child = plain_seed.fork_idle(1, &["--to", second, "--root", path]).remove(0);
    assert_eq!(content_of_root(child.pid), "other");
    cluster.first().json(&["kill", &child.id]);
    plain_seed.fork_and_check(&plain, 6, &["--to", second, "--root", "/"]);
    seed.fork_and_check(&parent, 6, &["--to", second, "--root", "/"]);
    let scratch = scratch::directory();
    let link = scratch.path().join("link");
    symlink("/", &link).expect("a link");
    plain_seed.fork_and_check(&plain, 6, &["--to", second, "--root", &link.to_string_lossy()]);

    fs::remove_dir_all(root.path()).expect("a directory of the test");
    let refused = cluster.first().run_failing(&["fork", seed.id(), "--to", second]);
    refused.require_mentions(&[&*root.path().to_string_lossy(), "--root"]);
    let refused = cluster.first().run_failing(&["prepare", &parent.pid_text()]);
    refused.require_mentions(&["its root directory was removed"]);
    // An unset variable of a script must not select the root of the seed.
    let empty = cluster.first().run(&["fork", seed.id(), "--root", ""]);
    assert_eq!(empty.status.code(), Some(2), "{}", empty.stderr);
    for missing in ["/nowhere", "relative"] {
        cluster.first().run_failing(&["fork", seed.id(), "--root", missing]).require_mentions(&[missing]);
    }
    seed.fork_and_check(&parent, 7, &["--to", second, "--root", path]);
    parent.require_unharmed();
    plain.require_unharmed();
}

/// Replaces a program by a file of the same size that is no program. A child that maps it crashes.
fn spoil_program(program: &Path) {
    let bytes = fs::metadata(Program::Waits.command().get_program()).expect("a program").len();
    fs::create_dir_all(program.parent().expect("a directory")).expect("a directory");
    fs::write(program, vec![0; bytes as usize]).expect("space");
}

/// The other root has other files at the paths of the parent's files.
fn other_files_in_root(cluster: &Cluster) {
    let (root, spoilt, linked) = (make_root("node"), make_root("spoilt"), make_root("linked"));
    let program = root.path().join("bin/program");
    fs::create_dir(root.path().join("bin")).expect("a directory");
    fs::rename(root.path().join("program"), &program).expect("a program");
    spoil_program(&spoilt.path().join("bin/program"));
    // For the node, this link leads to the parent's program. For a child, it leads to another file.
    symlink(root.path().join("bin"), linked.path().join("bin")).expect("a link");
    spoil_program(&linked.path().join(program.strip_prefix("/").expect("an absolute path")));

    let mut parent = start_program_in_root(root.path(), "/bin/program");
    let (seed, second) = (Seed::prepare(cluster.first(), &parent), cluster.name(1));
    let in_root = |root: &Path| seed.fork_and_check(&parent, 5, &["--to", second, "--root", &root.to_string_lossy()]);
    in_root(linked.path());
    // A check of one root says nothing about another one.
    thread::scope(|scope| {
        for directory in [&root, &spoilt, &root, &spoilt] {
            scope.spawn(|| (0..5).for_each(|_| in_root(directory.path())));
        }
    });

    let scratch = scratch::directory();
    let (link, next) = (scratch.path().join("root"), scratch.path().join("next"));
    symlink(root.path(), &link).expect("a link");
    let (running, has_ended) = mpsc::channel::<()>();
    thread::scope(|scope| {
        // Also dropped by a panic.
        let _running = running;
        let (roots, link) = ([spoilt.path(), root.path()], &link);
        scope.spawn(move || {
            let is_running = || has_ended.try_recv() == Err(TryRecvError::Empty);
            for directory in roots.into_iter().cycle().take_while(|_| is_running()) {
                symlink(directory, &next).expect("a link");
                fs::rename(&next, link).expect("a link is exchanged");
            }
        });
        (0..10).for_each(|_| in_root(link));
    });
    parent.require_unharmed();
}

/// New containers, which are not yet complete when they get their root.
fn many_in_root(cluster: &Cluster) {
    let root = make_root("node");
    let mut parent = start_in_root(root.path());
    let seed = Seed::prepare(cluster.first(), &parent);
    let nodes = format!("{},{}", cluster.name(0), cluster.name(1));
    for options in [&["--net", "host"][..], &["--net", "host"], &[]] {
        let children = seed.fork_idle(80, &[&["--to", &nodes], options].concat());
        for child in children {
            assert_eq!(content_of_root(child.pid), "node");
            cluster.first().json(&["kill", &child.id]);
        }
    }
    parent.require_unharmed();
}

fn unsuitable_root(cluster: &Cluster) {
    let root = make_root("node");
    let start = |root: &Path, program: &str| {
        let mut command = Command::new(BINARY);
        let ended = command.args(["run", "--root"]).arg(root).args(["--", program]).output();
        let ended = ended.expect("the binary under test");
        assert_eq!(ended.status.code(), Some(1));
        String::from_utf8_lossy(&ended.stderr).into_owned()
    };
    let said = start(Path::new("/"), "/program");
    assert!(said.contains("it is the root already"), "{said}");
    let said = start(Path::new(OsStr::from_bytes(b"/srv/\xff")), "/program");
    assert!(said.contains("its path is not UTF-8"), "{said}");
    let said = start(root.path(), "/missing");
    assert!(said.contains("program /missing") && said.contains("No such file"), "{said}");
    fs::remove_dir(root.path().join("dev")).expect("an empty directory");
    let said = start(root.path(), "/program");
    assert!(said.contains("has no directory /dev") && said.contains("create"), "{said}");
    let said = start(&root.path().join("content"), "/program");
    assert!(said.contains("content"), "{said}");

    // A link in the place of a mount point could lead out of the root.
    let root = make_root("node");
    let mut parent = start_in_root(root.path());
    let seed = Seed::prepare(cluster.first(), &parent);
    symlink("/tmp", root.path().join("run")).expect("a link");
    let refused = cluster.first().run_failing(&["fork", seed.id(), "--to", cluster.name(1)]);
    refused.require_mentions(&[&*root.path().to_string_lossy(), "its /run is not a directory"]);
    parent.require_unharmed();
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
