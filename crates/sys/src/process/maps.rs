//! Parses `/proc/PID/maps` and `smaps`: the memory map.

use std::fs::File;
use std::io::{self, BufRead as _, Read};
use std::ops::Range;

use super::malformed;

/// One line of `/proc/PID/maps`; addresses and offset in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MapEntry {
    /// First address.
    pub start: u64,
    /// Address after the last byte.
    pub end: u64,
    /// PROT_* bits: 1 read, 2 write, 4 execute.
    pub protection: u8,
    /// MAP_SHARED.
    pub is_shared: bool,
    /// Offset in the file.
    pub offset: u64,
    /// Device of the file, as the kernel encodes dev_t for user space; 0 for none.
    pub device: u64,
    /// Inode of the file, 0 for none.
    pub inode: u64,
    /// Path or `[name]`, or empty.
    pub path: Vec<u8>,
    /// VmFlags of `smaps`: two letters each, separated by spaces; empty if read from `maps`.
    vm_flags: String,
}

impl MapEntry {
    /// Length of the mapping, in bytes.
    pub fn bytes(&self) -> u64 {
        self.end - self.start
    }

    /// Whether `smaps` shows a flag, such as `dd`; proc_pid_smaps(5) lists them.
    pub fn has_flag(&self, flag: &str) -> bool {
        self.vm_flags.split_ascii_whitespace().any(|word| word == flag)
    }

    /// All flags that `smaps` shows.
    pub fn flags(&self) -> impl Iterator<Item = &str> {
        self.vm_flags.split_ascii_whitespace()
    }

    /// Replaces the flags by those of a later reading of the same mapping.
    pub fn copy_flags(&mut self, later: &Self) {
        self.vm_flags.clone_from(&later.vm_flags);
    }

    /// Adds a flag.
    pub fn add_flag(&mut self, flag: &str) {
        self.vm_flags.push_str(&format!(" {flag}"));
    }

    /// Removes a flag.
    pub fn clear_flag(&mut self, flag: &str) {
        let left = self.vm_flags.split_ascii_whitespace().filter(|word| *word != flag);
        self.vm_flags = left.collect::<Vec<_>>().join(" ");
    }

    /// Returns the parts of the mapping that are outside of `range`. The mapping must have no file. The range must be inside
    /// the mapping or disjoint from it.
    pub fn subtract(self, range: &Range<u64>) -> impl Iterator<Item = Self> {
        let is_inside = self.start <= range.start && range.end <= self.end;
        let (below, above) = if is_inside { (range.start, range.end) } else { (self.end, self.end) };
        let above = Self { start: above, ..self.clone() };
        [Self { end: below, ..self }, above].into_iter().filter(|piece| piece.start < piece.end)
    }

    /// Name of the mapping's link in `/proc/PID/map_files`.
    pub fn range_name(&self) -> String {
        format!("{:x}-{:x}", self.start, self.end)
    }

    fn parse(line: &[u8]) -> Option<Self> {
        // Up to the inode the line is ASCII, in five fields; the rest is the path.
        let mut rest = line;
        let mut field = || {
            let from = rest.iter().position(|byte| *byte != b' ')?;
            let to = rest[from..].iter().position(|byte| *byte == b' ').map_or(rest.len(), |length| from + length);
            let word = str::from_utf8(&rest[from..to]).ok()?;
            rest = &rest[to..];
            Some(word)
        };
        let hex = |word: &str| u64::from_str_radix(word, 16).ok();
        let (start, end) = field()?.split_once('-')?;
        let permissions = field()?.as_bytes();
        let offset = hex(field()?)?;
        let (major, minor) = field()?.split_once(':')?;
        let inode = field()?.parse().ok()?;
        let bit = |at: usize, permission: u8, bit: u8| {
            if permissions.get(at) == Some(&permission) { bit } else { 0 }
        };
        Some(Self {
            start: hex(start)?,
            end: hex(end)?,
            protection: bit(0, b'r', 1) | bit(1, b'w', 2) | bit(2, b'x', 4),
            is_shared: permissions.get(3) == Some(&b's'),
            offset,
            device: rustix::fs::makedev(hex(major)? as u32, hex(minor)? as u32),
            inode,
            path: unescape(rest.trim_ascii_start()),
            vm_flags: String::new(),
        })
    }
}

/// Decodes a path, in which the kernel writes a newline as `\012`.
fn unescape(path: &[u8]) -> Vec<u8> {
    const NEWLINE: &[u8] = b"\\012";
    let mut plain = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some((first, others)) = rest.split_first() {
        if let Some(behind) = rest.strip_prefix(NEWLINE) {
            plain.push(b'\n');
            rest = behind;
        } else {
            plain.push(*first);
            rest = others;
        }
    }
    plain
}

/// Reads the memory map without VmFlags. This is cheap, because the kernel visits no pages.
///
/// # Errors
/// NotFound if the process has ended.
pub fn read_maps(pid: i32) -> io::Result<Vec<MapEntry>> {
    parse(&read_records(&format!("/proc/{pid}/maps"))?).ok_or_else(|| malformed("maps"))
}

/// Reads the memory map with VmFlags. For this the kernel visits every page.
///
/// # Errors
/// NotFound if the process has ended.
pub fn read_smaps(pid: i32) -> io::Result<Vec<MapEntry>> {
    parse(&read_records(&format!("/proc/{pid}/smaps"))?).ok_or_else(|| malformed("smaps"))
}

/// Reads a file that the kernel generates record by record, about 4 KiB per call. The initial capacity saves the calls that
/// probe for a suitable buffer size.
fn read_records(path: &str) -> io::Result<Vec<u8>> {
    const EXPECTED_BYTES: usize = 32 << 10;
    let mut bytes = Vec::with_capacity(EXPECTED_BYTES);
    // `take` keeps the standard library from querying the file's size first, which files of /proc do not have.
    File::open(path)?.take(u64::MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Splits a text into lines. `skip_until` searches a whole machine word at a time, which matters because most lines are
/// skipped.
fn lines(mut rest: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let line = rest;
        let bytes = rest.skip_until(b'\n').ok().filter(|bytes| *bytes > 0)?;
        Some(line[..bytes].strip_suffix(b"\n").unwrap_or(&line[..bytes]))
    })
}

/// Parses the text of `maps` or `smaps`. In `smaps`, lines with properties of a mapping begin with a capital letter. The
/// line of the mapping itself begins with a lower-case hex digit.
fn parse(text: &[u8]) -> Option<Vec<MapEntry>> {
    let mut entries: Vec<MapEntry> = Vec::new();
    for line in lines(text).filter(|line| !line.is_empty()) {
        if !line[0].is_ascii_uppercase() {
            entries.push(MapEntry::parse(line)?);
        } else if let Some(flags) = line.strip_prefix(b"VmFlags:") {
            entries.last_mut()?.vm_flags = str::from_utf8(flags).ok()?.to_owned();
        }
    }
    Some(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_with_spaces_and_newline_is_parsed() {
        let text = b"55d0c000-55d0d000 r-xs 00001000 fe:01 42                 /tmp/a b\\012c (deleted)\nSize: 4 kB\nVmFlags: rd ex sh \n";
        let entries = parse(text).unwrap();
        let entry = &entries[0];
        assert_eq!((entry.start, entry.end, entry.offset, entry.inode), (0x55d0_c000, 0x55d0_d000, 0x1000, 42));
        assert_eq!((entry.protection, entry.is_shared), (5, true));
        assert_eq!(entry.path, b"/tmp/a b\nc (deleted)");
        assert!(entry.has_flag("sh") && !entry.has_flag("dd"));
        let mut other = entry.clone();
        other.clear_flag("sh");
        assert!(other.has_flag("ex") && !other.has_flag("sh"));
        other.copy_flags(entry);
        assert_eq!(other, *entry);
    }

    #[test]
    fn a_range_is_subtracted_from_a_mapping() {
        let text = b"10000-20000 rwxp 00000000 00:00 0 \n";
        let cut = |range| -> Vec<(u64, u64)> {
            parse(text).unwrap().remove(0).subtract(&range).map(|piece| (piece.start, piece.end)).collect()
        };
        assert_eq!(cut(0x12000..0x13000), [(0x10000, 0x12000), (0x13000, 0x20000)]);
        assert_eq!(cut(0x10000..0x20000), []);
        assert_eq!(cut(0x10000..0x11000), [(0x11000, 0x20000)]);
        assert_eq!(cut(0x30000..0x31000), [(0x10000, 0x20000)]);
    }

    #[test]
    fn the_map_of_this_process_has_a_stack_and_flags() {
        let pid = std::process::id() as i32;
        assert!(read_maps(pid).unwrap().iter().any(|entry| entry.path == b"[stack]" && entry.protection & 2 != 0));
        assert!(read_smaps(pid).unwrap().iter().any(|entry| entry.path == b"[stack]" && entry.has_flag("gd")));
    }
}
