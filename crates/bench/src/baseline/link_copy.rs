//! The floor of paging: two minimal programs, each on the machine of one node, that copy a given number of bytes over
//! the link between the nodes. `link_copy.cpp` is the program.

use crate::error::BenchError;
use crate::experiment::nodes::ClusterNode;
use crate::machine::program::{ConnectedPrograms, EmbeddedProgram};
use crate::workload::micro::ns_to_ms;

/// The program.
pub(crate) const LINK_COPY: EmbeddedProgram =
    EmbeddedProgram { name: "link_copy", bytes: include_bytes!(concat!(env!("OUT_DIR"), "/link_copy")) };

/// Minimum plausible rate of two programs on one machine that copy over TCP, in MiB per second, even with other load on
/// the CPUs: a tenth of the measured rate.
const RATE_MIN_MIB_PER_S: f64 = 150.0;

/// Minimum plausible time of a copy over the link, as a fraction of the time of a copy within memory. A copy over the link
/// includes a copy within memory. The fraction is below 1, because the copy within memory may find colder caches.
const MEMORY_COPY_RATIO_MIN: f64 = 0.5;

/// A pair of programs at the ends of the link. They are killed when this value is dropped.
#[derive(Debug)]
pub(crate) struct LinkCopy(ConnectedPrograms);

impl LinkCopy {
    /// Starts the installed programs, ready to copy `mib` from the first node to the second.
    pub(crate) fn open(nodes: &[ClusterNode], mib: u64) -> Result<Self, BenchError> {
        let (on, mib) = (nodes[0].machine(), mib.to_string());
        let sender = LINK_COPY.start(on, ["send", &on.address().to_string(), &mib])?;
        let connected = ConnectedPrograms::start(on, sender, [nodes[1].machine()], |machine, to| {
            LINK_COPY.start(machine, ["receive", &to.ip().to_string(), &to.port().to_string(), &mib])
        });
        connected.map(Self)
    }

    /// Copies once over the link. Returns the time in ms, from the request to the last byte in memory.
    pub(crate) fn copy_ms(&mut self) -> Result<f64, BenchError> {
        self.request_copy(b'l')
    }

    /// Copies the same bytes within the memory of the receiver. Returns the time in ms.
    pub(crate) fn memory_copy_ms(&mut self) -> Result<f64, BenchError> {
        self.request_copy(b'm')
    }

    fn request_copy(&mut self, command: u8) -> Result<f64, BenchError> {
        let [ns, wrong] = self.0.clients[0].request(command, "copied")?;
        match u64::try_from(wrong) {
            Ok(0) => Ok(ns_to_ms(ns)),
            wrong => {
                Err(BenchError::WrongMemory { count: wrong.unwrap_or(u64::MAX), what: "bytes of a copy over the link" })
            }
        }
    }
}

/// Why the medians of copies of this size are implausible; `None` if they are plausible.
///
/// A floor that is too low or too high makes the comparison worthless. So a copy counts only under three conditions.
/// Every byte arrived (`request_copy` checks that). The copy took at least half the time of a copy within memory, which
/// it includes. And the rate is not so low that other load must have delayed the copy.
pub(crate) fn implausible_reason(mib: u64, copy_ms: f64, memory_copy_ms: f64) -> Option<String> {
    let rate = mib as f64 / (copy_ms / 1e3);
    if copy_ms < memory_copy_ms * MEMORY_COPY_RATIO_MIN {
        return Some(format!("{copy_ms:.2} ms for {mib} MiB, but a copy within memory takes {memory_copy_ms:.2} ms"));
    }
    (rate < RATE_MIN_MIB_PER_S)
        .then(|| format!("{copy_ms:.2} ms for {mib} MiB are {rate:.0} MiB/s, too slow for a link"))
}

#[cfg(test)]
mod tests {
    use super::implausible_reason;

    #[test]
    fn only_plausible_copies_count() {
        assert_eq!(implausible_reason(64, 32.0, 10.0), None);
        assert!(implausible_reason(64, 1.0, 10.0).unwrap().contains("within memory"));
        assert!(implausible_reason(64, 6400.0, 10.0).unwrap().contains("too slow"));
    }
}
