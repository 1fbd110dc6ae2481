//! The address space of a waiting stub: what its fork must get out of the way, and where its vdso is.

use std::io;

use farfork_wire::descriptor::SpecialMapping;

/// The ranges that a stub has mapped.
#[derive(Debug)]
pub(super) struct StubMap {
    ranges: Vec<(u64, u64)>,
    specials: Vec<(SpecialMapping, (u64, u64))>,
}

impl StubMap {
    /// Reads it from /proc/PID/maps.
    ///
    /// # Errors
    /// As open(2) and read(2); `InvalidData` for a line that is not as proc_pid_maps(5) says.
    pub(super) fn read(pid: i32) -> io::Result<Self> {
        Self::parse(&std::fs::read_to_string(format!("/proc/{pid}/maps"))?)
    }

    fn parse(text: &str) -> io::Result<Self> {
        let mut map = Self { ranges: Vec::new(), specials: Vec::new() };
        for line in text.lines() {
            let parse = |line: &str| {
                let (start, end) = line.split_once(' ')?.0.split_once('-')?;
                Some((u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?))
            };
            let range = parse(line).ok_or(io::ErrorKind::InvalidData)?;
            let kind = match line.rsplit(' ').next() {
                Some("[vdso]") => Some(SpecialMapping::Vdso),
                Some("[vvar]") => Some(SpecialMapping::Vvar),
                Some("[vvar_vclock]") => Some(SpecialMapping::VvarVclock),
                Some("[vsyscall]") => continue,
                _ => None,
            };
            map.ranges.push(range);
            map.specials.extend(kind.map(|kind| (kind, range)));
        }
        Ok(map)
    }

    /// Every range.
    pub(super) fn ranges(&self) -> &[(u64, u64)] {
        &self.ranges
    }

    /// Where the kernel's mapping of this kind is.
    pub(super) fn special(&self, kind: SpecialMapping) -> Option<(u64, u64)> {
        self.specials.iter().find(|(found, _)| *found == kind).map(|(_, range)| *range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn specials_are_found_and_vsyscall_is_not_there() {
        let text = "\
55d1c0000000-55d1c0002000 r-xp 00000000 00:01 1044                       /memfd:stub (deleted)
7ffd12300000-7ffd12321000 rw-p 00000000 00:00 0                          [stack]
7ffd12358000-7ffd1235c000 r--p 00000000 00:00 0                          [vvar]
7ffd1235c000-7ffd1235e000 r--p 00000000 00:00 0                          [vvar_vclock]
7ffd1235e000-7ffd12360000 r-xp 00000000 00:00 0                          [vdso]
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]
";
        let map = StubMap::parse(text).unwrap();
        assert_eq!(map.ranges().len(), 5);
        assert_eq!(map.special(SpecialMapping::Vdso), Some((0x7ffd_1235_e000, 0x7ffd_1236_0000)));
        assert!(StubMap::parse("nonsense\n").is_err());
    }
}
