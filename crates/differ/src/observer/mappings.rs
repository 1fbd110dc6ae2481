//! The memory map: protection, file, policy and flags of each address, as `smaps` and `numa_maps` show them.
//!
//! Each property has its own runs of addresses. The boundaries of mappings depend on their history, so a mapping that
//! differs in one property must not count as different in the others.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::os::unix::fs::MetadataExt;

use farfork_sys::process::{self, MapEntry};

use super::{ObservationBuilder, ObserveError};

/// Flags of mappings that are not compared, with the reason.
const FLAGS_UNREAD: [(&str, &str); 10] = [
    ("rd", "also in `protection`"),
    ("wr", "also in `protection`"),
    ("ex", "also in `protection`"),
    ("sh", "also in `protection`"),
    ("um", "registered with the child's pager for missing pages"),
    ("uw", "registered with the child's pager for writes"),
    ("ui", "registered with the child's pager for minor faults"),
    ("sd", "pages written since the last query"),
    ("lf", "locked pages are fetched when they are touched"),
    ("gu", "no flag of a mapping shows which pages are guard pages"),
];

/// A range of addresses with the same value of a property.
struct PropertyRun {
    start: u64,
    end: u64,
    value: String,
    /// Offset in the file, if there is one.
    offset: Option<u64>,
}

/// Reads the memory map of a process.
pub(super) fn read_mappings(pid: i32, fields: &mut ObservationBuilder) -> Result<(), ObserveError> {
    let path = format!("/proc/{pid}/smaps");
    let entries = process::read_smaps(pid).map_err(ObserveError::read(path))?;
    let policies = read_numa_policies(pid);
    let mut runs: BTreeMap<String, Vec<PropertyRun>> = BTreeMap::new();
    for entry in entries.iter().filter(|entry| !is_dont_fork(entry)) {
        let policy = policies.get(&entry.start).map_or("", String::as_str);
        for (property, value, offset) in mapping_properties(entry, policy, has_name(pid, entry)) {
            extend_runs(runs.entry(property).or_default(), entry, value, offset);
        }
    }
    for (property, runs) in runs {
        for PropertyRun { start, end, value, offset } in runs {
            let offset = offset.map_or_else(String::new, |offset| format!(" at {offset:x}"));
            fields.put(&format!("memory/{property}/{start:x}-{end:x}"), format!("{value}{offset}"));
        }
    }
    Ok(())
}

/// Whether the file of a shared mapping has a name, which other processes can open.
fn has_name(pid: i32, entry: &MapEntry) -> Option<bool> {
    let link = format!("/proc/{pid}/map_files/{:x}-{:x}", entry.start, entry.end);
    let found = if entry.is_shared && entry.inode != 0 { fs::metadata(link).ok()? } else { return None };
    found.is_file().then(|| found.nlink() > 0)
}

/// Whether fork(2) omits the mapping (MADV_DONTFORK). Mappings that the kernel made also have that flag, but children have
/// them anyway.
fn is_dont_fork(entry: &MapEntry) -> bool {
    entry.has_flag("dc") && !entry.has_flag("pf") && !entry.has_flag("io")
}

/// Returns name, value and offset of each property of a mapping.
fn mapping_properties(entry: &MapEntry, policy: &str, has_name: Option<bool>) -> Vec<(String, String, Option<u64>)> {
    let sharing = if entry.is_shared { "shared" } else { "private" };
    let mut properties = vec![("protection".to_owned(), format!("{sharing} {}", entry.protection), None)];
    if !entry.path.is_empty() {
        let path = String::from_utf8_lossy(&entry.path);
        let offset = (entry.inode != 0).then_some(entry.offset);
        properties.push(("file".to_owned(), format!("{sharing} {path}"), offset));
    }
    properties.extend(has_name.map(|has_name| ("has name".to_owned(), has_name.to_string(), Some(entry.offset))));
    properties.extend((!policy.is_empty()).then(|| ("policy".to_owned(), policy.to_owned(), None)));
    let is_left_out = |flag: &str| FLAGS_UNREAD.iter().any(|(unread, _)| *unread == flag);
    let flags = entry.flags().filter(|flag| !is_left_out(flag));
    // Whether a shared mapping may become writable (`mw`) depends on its file, so this flag has an offset too.
    let offset_of = |flag: &str| (flag == "mw" && entry.is_shared).then_some(entry.offset);
    properties.extend(flags.map(|flag| (format!("flag {flag}"), "set".to_owned(), offset_of(flag))));
    properties
}

/// Adds a mapping to the runs of a property: extends the last run if the mapping continues it. Mappings of files are not
/// merged, because one of two neighbours may have become private memory.
fn extend_runs(runs: &mut Vec<PropertyRun>, entry: &MapEntry, value: String, offset: Option<u64>) {
    let goes_on =
        |last: &&mut PropertyRun| last.end == entry.start && last.value == value && last.offset.or(offset).is_none();
    match runs.last_mut().filter(goes_on) {
        Some(last) => last.end = entry.end,
        None => runs.push(PropertyRun { start: entry.start, end: entry.end, value, offset }),
    }
}

/// The memory policy of each mapping (`numa_maps`), by address; empty if the kernel has no such file.
fn read_numa_policies(pid: i32) -> HashMap<u64, String> {
    let text = fs::read_to_string(format!("/proc/{pid}/numa_maps")).unwrap_or_default();
    let policy = |line: &str| {
        let mut words = line.split_whitespace();
        Some((u64::from_str_radix(words.next()?, 16).ok()?, words.next()?.to_owned()))
    };
    text.lines().filter_map(policy).collect()
}
