//! Open files: what `/proc/PID/fdinfo` shows of each, and what queries return through a copy of the descriptor
//! (pidfd_getfd(2)).

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::{AsFd, BorrowedFd};

use farfork_sys::fd_query::{self, FdQuery};
use farfork_sys::pidfd;
use farfork_sys::process::{EpollSlot, TaskFd};
use rustix::fs::{FileType, fstat};
use rustix::io::Errno;

use super::identifiers::OUTSIDE;
use super::{EpollRegistration, ObservationBuilder, ObserveError, bytes_text, sockets};

/// Lines of `fdinfo` that are not compared, with the reason.
const FDINFO_SKIPPED: [(&str, &str); 4] = [
    ("mnt_id", "a mount of the process's own container; the field `link` has the path"),
    ("ino", "an inode number; the field `inode` shows which descriptors have the same inode"),
    ("tfd", "a registration of an epoll instance; `put_epoll_registrations` records it"),
    ("eventfd-id", "the kernel's own number of the eventfd"),
];

/// Queries that return process ids.
const ID_ANSWERS: [&str; 2] = ["TIOCGPGRP", "TIOCGSID"];

/// Reads all descriptors of a process.
pub(super) fn read_descriptors(pid: i32, fields: &mut ObservationBuilder) -> Result<(), ObserveError> {
    let folder = format!("/proc/{pid}/fd");
    let process = pidfd::open(pid).map_err(ObserveError::read(format!("/proc/{pid}")))?;
    let entries = fs::read_dir(&folder).map_err(ObserveError::read(&folder))?;
    let mut numbers: Vec<u32> =
        entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    numbers.sort_unstable();
    for number in numbers {
        let field = format!("fd/{number}");
        let link = fs::read_link(format!("{folder}/{number}")).map_err(ObserveError::read(&folder))?;
        put_link(&link.to_string_lossy(), &field, fields);
        let place = format!("{} {field}", fields.prefix);
        let open_file = fields.names.name_open_file(TaskFd { pid, fd: number }, &place);
        let is_known = open_file != place;
        fields.put(&format!("{field}/open file"), open_file);
        let path = format!("/proc/{pid}/fdinfo/{number}");
        let info = fs::read_to_string(&path).map_err(ObserveError::read(path))?;
        put_info(&info, &field, fields);
        if is_known {
            continue;
        }
        add_epoll_registrations(&info, TaskFd { pid, fd: number }, &field, fields);
        match pidfd::get_fd(&process, number) {
            Ok(copy) => {
                put_query_results(copy.as_fd(), &field, fields);
                put_hidden_state(copy.as_fd(), &link.to_string_lossy(), &field, fields);
            }
            Err(error) => fields.put(&format!("{field}/copy"), super::error_name(&error)),
        }
    }
    Ok(())
}

/// Records the target of a descriptor's link. Targets such as `pipe:[4711]` and `socket:[4711]` are named after the place
/// where they were first seen.
fn put_link(link: &str, field: &str, fields: &mut ObservationBuilder) {
    let value = match link.strip_suffix(']').and_then(|link| link.split_once(":[")) {
        Some((kind, number)) if number.parse::<u64>().is_ok() => {
            let place = format!("{} {field}", fields.prefix);
            format!("{kind} of {}", fields.names.name_object(kind, number, &place))
        }
        _ => link.to_owned(),
    };
    fields.put(&format!("{field}/link"), value);
}

fn put_info(info: &str, field: &str, fields: &mut ObservationBuilder) {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for line in info.lines() {
        let (name, value) = parse_info_line(line, field, fields);
        if FDINFO_SKIPPED.iter().any(|(unread, _)| *unread == name) {
            continue;
        }
        let count = counts.entry(name.clone()).or_default();
        *count += 1;
        let name = if *count > 1 { format!("{name} {count}") } else { name };
        fields.put(&format!("{field}/info/{name}"), value);
    }
}

/// Parses a line into name and value.
fn parse_info_line(line: &str, field: &str, fields: &mut ObservationBuilder) -> (String, String) {
    if line.starts_with("inotify ") || line.starts_with("fanotify ") {
        return parse_watch_line(line, field, fields);
    }
    let (name, value) = line.split_once(':').unwrap_or((line, ""));
    match name.trim() {
        "Pid" | "NSpid" => {
            let first = value.split_whitespace().next().unwrap_or_default();
            (name.to_owned(), fields.names.translate_text(first))
        }
        "lock" => (name.to_owned(), parse_lock_line(value, fields)),
        // The remaining time as `(seconds, nanoseconds)`.
        "it_value" => (name.to_owned(), milliseconds(value).to_string()),
        name => (name.to_owned(), value.trim().to_owned()),
    }
}

fn milliseconds(value: &str) -> u64 {
    let value = value.trim().trim_start_matches('(').trim_end_matches(')');
    let (seconds, nanoseconds) = value.split_once(", ").unwrap_or((value, "0"));
    let number = |text: &str| text.parse::<u64>().unwrap_or(0);
    number(seconds) * 1000 + number(nanoseconds).div_ceil(1_000_000)
}

/// Parses `inotify wd:a ino:9e7e sdev:800013 mask:800afce ignored_mask:0 fhandle-bytes:8 …`. The file is named after the
/// place where it was first seen.
fn parse_watch_line(line: &str, field: &str, fields: &mut ObservationBuilder) -> (String, String) {
    let words: BTreeMap<&str, &str> = line.split_whitespace().filter_map(|word| word.split_once(':')).collect();
    let word = |name: &str| words.get(name).copied().unwrap_or_default();
    let number = format!("{}:{}", word("sdev"), word("ino"));
    let place = format!("{} {field} wd {}", fields.prefix, word("wd"));
    let file = fields.names.name_object("watched", &number, &place);
    (format!("wd {}", word("wd")), format!("mask {} of {file}", word("mask")))
}

/// Parses `1: POSIX  ADVISORY  WRITE 4711 00:13:11691 0 EOF`. The owner's id is replaced by its name. The numbers of the
/// lock and of the file are left out.
fn parse_lock_line(value: &str, fields: &ObservationBuilder) -> String {
    let words: Vec<&str> = value.split_whitespace().collect();
    let named = |(at, word): (usize, &&str)| match at {
        0 | 5 => None,
        4 => Some(fields.names.translate_text(word)),
        _ => Some((*word).to_owned()),
    };
    words.iter().enumerate().filter_map(named).collect::<Vec<_>>().join(" ")
}

/// Adds the registrations of an epoll instance: `tfd: 5 events: 19 data: 5 pos:0 ino:3d sdev:e`. Several may have one number.
fn add_epoll_registrations(info: &str, epoll: TaskFd, field: &str, fields: &mut ObservationBuilder) {
    let mut counts: BTreeMap<u32, u32> = BTreeMap::new();
    for line in info.lines().filter_map(|line| line.strip_prefix("tfd:")) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let Some(Ok(target)) = words.first().map(|word| word.parse()) else { continue };
        let position = counts.entry(target).or_default();
        fields.epoll_registrations.push(EpollRegistration {
            field: format!("{}/{field}/info/tfd {target}", fields.prefix),
            slot: EpollSlot { epoll, target, position: *position },
            events: words[1..words.len().min(5)].join(" "),
        });
        *position += 1;
    }
}

/// Records each registration of an epoll instance, with the file that it watches. Its number may belong to another file by
/// now, and anonymous files share one inode. Registrations with one number are sorted, because the kernel orders them by
/// address.
pub(super) fn put_epoll_registrations(fields: &mut ObservationBuilder) {
    let mut by_field: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for EpollRegistration { field, slot, events } in std::mem::take(&mut fields.epoll_registrations) {
        let watched = fields.names.epoll_target_name(slot).unwrap_or(OUTSIDE);
        by_field.entry(field).or_default().push(format!("{watched}, {events}"));
    }
    for (field, mut registrations) in by_field {
        registrations.sort();
        fields.observation.insert(field, registrations.join("; "));
    }
}

/// Records whether a file has a name, which other processes can open, and whether its open file has a pressure trigger.
fn put_hidden_state(copy: BorrowedFd<'_>, link: &str, field: &str, fields: &mut ObservationBuilder) {
    let Ok(stat) = fstat(copy) else { return };
    let kind = FileType::from_raw_mode(stat.st_mode);
    if matches!(kind, FileType::RegularFile | FileType::Fifo) {
        fields.put(&format!("{field}/has name"), stat.st_nlink > 0 && !link.starts_with("pipe:"));
    }
    if link.starts_with("/proc/pressure/") || (link.starts_with("/sys/fs/cgroup/") && link.ends_with(".pressure")) {
        fields.put(&format!("{field}/has trigger"), has_pressure_trigger(copy));
    }
}

/// Whether an open file has a trigger of pressure stall information. The kernel refuses a second one before it reads the
/// text, and no text begins with this byte.
fn has_pressure_trigger(copy: BorrowedFd<'_>) -> bool {
    rustix::io::write(copy, b"?\0") == Err(Errno::BUSY)
}

fn put_query_results(copy: BorrowedFd<'_>, field: &str, fields: &mut ObservationBuilder) {
    let Ok(stat) = fstat(copy) else { return };
    let kind = FileType::from_raw_mode(stat.st_mode);
    fields.put(&format!("{field}/stat/mode"), format!("{:o}", stat.st_mode));
    fields.put(&format!("{field}/stat/owner"), format!("{}:{}", stat.st_uid, stat.st_gid));
    fields.put(&format!("{field}/stat/device"), stat.st_rdev);
    let place = format!("{} {field}", fields.prefix);
    let inode = fields.names.name_object("inode", &format!("{}:{}", stat.st_dev, stat.st_ino), &place);
    fields.put(&format!("{field}/inode"), inode);
    if kind == FileType::RegularFile {
        fields.put(&format!("{field}/stat/bytes"), stat.st_size);
        fields.put(&format!("{field}/stat/links"), stat.st_nlink);
        fields.put(&format!("{field}/stat/modified"), format!("{}.{:09}", stat.st_mtime, stat.st_mtime_nsec));
    }
    for inquiry in fd_query::FCNTL_QUERIES {
        put_query_result(inquiry, fd_query::query_fcntl(copy, inquiry), &format!("{field}/fcntl"), fields);
    }
    if accepts_ioctl_queries(kind, copy) {
        for inquiry in fd_query::IOCTL_QUERIES {
            put_query_result(inquiry, fd_query::query_ioctl(copy, inquiry), &format!("{field}/ioctl"), fields);
        }
    }
    if kind == FileType::Socket {
        sockets::read_socket(copy, field, fields);
    }
}

/// Whether the ioctl queries are safe: devices other than terminals may interpret their numbers as other commands.
fn accepts_ioctl_queries(kind: FileType, copy: BorrowedFd<'_>) -> bool {
    match kind {
        FileType::CharacterDevice => rustix::termios::isatty(copy),
        FileType::BlockDevice => false,
        _ => true,
    }
}

fn put_query_result(inquiry: FdQuery, answer: std::io::Result<Vec<u8>>, field: &str, fields: &mut ObservationBuilder) {
    let field = format!("{field}/{}", inquiry.name);
    let answer = answer.map(|bytes| match inquiry.name {
        name if ID_ANSWERS.contains(&name) => fields.names.translate_text(&bytes_text(&bytes)),
        // `struct f_owner_ex`: kind and id of the owner.
        "F_GETOWN_EX" => {
            format!("{} {}", bytes_text(&bytes[..4]), fields.names.translate_text(&bytes_text(&bytes[4..])))
        }
        _ => bytes_text(&bytes),
    });
    fields.put_result(&field, answer);
}

#[cfg(test)]
mod tests {
    use super::super::identifiers::IdentifierMap;
    use super::*;
    use crate::{Observation, compare};
    use std::fs::File;
    use std::io::Write;
    use std::os::fd::AsRawFd;

    use rustix::event::epoll;

    /// Observes descriptors of this process, under names that do not depend on their numbers.
    fn observe_own(files: &[BorrowedFd<'_>]) -> Observation {
        let pid = std::process::id().cast_signed();
        let mut fields = ObservationBuilder {
            observation: Observation::new(),
            prefix: "7".to_owned(),
            names: IdentifierMap::default(),
            epoll_registrations: Vec::new(),
        };
        for (index, file) in files.iter().enumerate() {
            let (field, number) = (format!("fd/{index}"), file.as_raw_fd().cast_unsigned());
            let descriptor = TaskFd { pid, fd: number };
            fields.names.name_open_file(descriptor, &format!("7 {field}"));
            let link = fs::read_link(format!("/proc/self/fd/{number}")).unwrap();
            let info = fs::read_to_string(format!("/proc/self/fdinfo/{number}")).unwrap();
            fields.put(&format!("{field}/link"), link.display());
            add_epoll_registrations(&info, descriptor, &field, &mut fields);
            put_hidden_state(*file, &link.to_string_lossy(), &field, &mut fields);
        }
        put_epoll_registrations(&mut fields);
        fields.observation
    }

    fn differing_fields(parent: &Observation, child: &Observation) -> Vec<String> {
        compare(parent, child).differences.into_iter().map(|difference| difference.field).collect()
    }

    #[test]
    fn a_registration_of_another_file_is_a_difference() {
        let instance = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let files = [(); 2].map(|()| rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).unwrap());
        let number = files[0].as_raw_fd();
        epoll::add(&instance, &files[0], epoll::EventData::new_u64(0), epoll::EventFlags::IN).unwrap();
        let observed = observe_own(&[files[0].as_fd(), files[1].as_fd(), instance.as_fd()]);
        let field = format!("7/fd/2/info/tfd {number}");
        assert!(observed[&field].starts_with("7 fd/0, events: "), "{}", observed[&field]);
        // A child that watches the file which has the number now.
        let mut faulty = observed.clone();
        faulty.insert(field.clone(), observed[&field].replace("fd/0", "fd/1"));
        assert_eq!(differing_fields(&observed, &faulty), [field]);
    }

    #[test]
    fn a_copy_of_a_file_that_lost_one_of_two_names_is_a_difference() {
        let directory = std::env::temp_dir().join(format!("farfork-differ-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let [first, second] = ["first", "second"].map(|name| directory.join(name));
        let file = File::create(&first).unwrap();
        fs::hard_link(&first, &second).unwrap();
        fs::remove_file(&first).unwrap();
        let parent = observe_own(&[file.as_fd()]);
        let by_other_name = observe_own(&[File::open(&second).unwrap().as_fd()]);
        let copy = observe_own(&[farfork_sys::memfd::create("copy", false).unwrap().as_fd()]);
        fs::remove_file(&second).unwrap();
        let without_name = observe_own(&[file.as_fd()]);
        fs::remove_dir(&directory).unwrap();
        assert_eq!(differing_fields(&parent, &copy), ["7/fd/0/has name"]);
        assert_eq!(differing_fields(&parent, &by_other_name), [""; 0]);
        assert_eq!(differing_fields(&without_name, &copy), [""; 0]);
    }

    #[test]
    fn a_lost_pressure_trigger_is_a_difference() {
        let open =
            || File::options().read(true).write(true).open("/proc/pressure/cpu").expect("a kernel with CONFIG_PSI");
        let (mut with, without) = (open(), open());
        with.write_all(b"some 500000 2000000\0").unwrap();
        let (parent, child) = (observe_own(&[with.as_fd()]), observe_own(&[without.as_fd()]));
        assert_eq!(differing_fields(&parent, &child), ["7/fd/0/has trigger"]);
        assert_eq!(parent, observe_own(&[with.as_fd()]), "the trigger stays");
    }
}
