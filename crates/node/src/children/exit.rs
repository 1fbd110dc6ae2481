//! How a child ended: read from the wait status that its container's stub wrote, and converted for the API.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use farfork_api::v1;
use serde::{Deserialize, Serialize};

use super::ExitRecord;
use super::child::SIGKILL;

/// How a child ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Exit {
    /// It called exit(2) with this code.
    Code(u32),
    /// This signal killed it.
    Signal(u32),
    /// Its wait status is unknown, for this reason.
    Lost(String),
}

impl Exit {
    /// Reads the wait status, four bytes, that the container's stub wrote to the child's directory.
    pub(crate) fn read(file: &Path) -> Self {
        let mut status = [0; 4];
        match File::open(file).and_then(|file| file.read_exact_at(&mut status, 0)) {
            Ok(()) => Self::from_wait_status(i32::from_ne_bytes(status)),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Self::Lost("its container was killed before it reported the exit status".to_owned())
            }
            Err(error) => Self::Lost(format!("its exit status cannot be read: {error}")),
        }
    }

    /// Replaces a lost exit status by SIGKILL if the child was killed for a limit or on request. The child's stub was
    /// killed too, and wrote no status: while an ending child's memory is still charged, the OOM killer may select the
    /// stub.
    pub(super) fn adjust_for_kill(self, is_killed: bool) -> Self {
        match self {
            Self::Lost(_) if is_killed => Self::Signal(SIGKILL),
            known => known,
        }
    }

    /// Decodes a wait(2) status: the signal in the low seven bits, otherwise the exit code in the second byte.
    fn from_wait_status(status: i32) -> Self {
        const SIGNAL_BITS: i32 = 0x7f;
        let (signal, code) = (status & SIGNAL_BITS, (status >> 8) & 0xff);
        match signal {
            0 => Self::Code(code.unsigned_abs()),
            SIGNAL_BITS => Self::Lost(format!("its wait status {status:#x} makes no sense")),
            _ => Self::Signal(signal.unsigned_abs()),
        }
    }
}

impl From<ExitRecord> for v1::Exit {
    fn from(ended: ExitRecord) -> Self {
        let how = match ended.exit {
            Exit::Code(code) => v1::exit::How::Code(code),
            Exit::Signal(signal) => v1::exit::How::Signal(signal),
            Exit::Lost(why) => v1::exit::How::Lost(why),
        };
        let limit_met = ended.limit_met.map_or(v1::Limit::Unspecified, v1::Limit::from);
        let limit = ended.limit_met.map(|limit| limit.to_string()).unwrap_or_default();
        Self { how: Some(how), limit, limit_met: limit_met.into(), by_program: ended.by_program }
    }
}

#[cfg(test)]
mod tests {
    use super::Exit;

    #[test]
    fn a_wait_status_is_code_or_signal() {
        let read = |bytes: &[u8]| {
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(file.path(), bytes).unwrap();
            Exit::read(file.path())
        };
        assert_eq!(read(&0x2a00_i32.to_ne_bytes()), Exit::Code(42));
        assert_eq!(read(&9_i32.to_ne_bytes()), Exit::Signal(9));
        assert_eq!(read(&0x8b_i32.to_ne_bytes()), Exit::Signal(11), "with a core dump");
        assert!(matches!(read(b""), Exit::Lost(_)));
        assert!(matches!(Exit::read("/nonexistent".as_ref()), Exit::Lost(_)));
    }

    #[test]
    fn a_child_of_a_killed_container_is_reported_as_killed() {
        let lost = || Exit::Lost("its container was killed before it reported the exit status".to_owned());
        assert_eq!(lost().adjust_for_kill(true), Exit::Signal(9));
        assert_eq!(lost().adjust_for_kill(false), lost());
        assert_eq!(Exit::Signal(7).adjust_for_kill(true), Exit::Signal(7));
        assert_eq!(Exit::Code(0).adjust_for_kill(true), Exit::Code(0), "it had ended before");
    }
}
