//! How a child ended.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::child::SIGKILL;
use super::{Ended, Limit};
use crate::api::v1;

/// How a child ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Exit {
    /// It called exit(2) with this code.
    Code(u32),
    /// This signal killed it.
    Signal(u32),
    /// Nothing is known but that it is gone, and this.
    Lost(String),
}

impl Exit {
    /// Reads what the container's stub left in the child's directory: a wait status of four bytes.
    pub(crate) fn read(file: &Path) -> Self {
        match fs::read(file) {
            Ok(bytes) => match <[u8; 4]>::try_from(bytes.as_slice()) {
                Ok(word) => Self::of_wait_status(i32::from_ne_bytes(word)),
                Err(_) => Self::Lost("its container was killed before it could tell".to_owned()),
            },
            Err(error) => Self::Lost(format!("its exit status cannot be read: {error}")),
        }
    }

    /// The same, with the limit that was met, if any: where the kernel took the container's own process for that, it killed the child
    /// with it (pid_namespaces(7)).
    pub(super) fn by_limit(self, limit_met: Option<Limit>) -> Self {
        match self {
            Self::Lost(_) if limit_met.is_some() => Self::Signal(SIGKILL),
            known => known,
        }
    }

    /// As wait(2) lays the word out: the signal in the low seven bits, else the exit code in the second byte.
    fn of_wait_status(word: i32) -> Self {
        const SIGNAL_BITS: i32 = 0x7f;
        let (signal, code) = (word & SIGNAL_BITS, (word >> 8) & 0xff);
        match signal {
            0 => Self::Code(code.unsigned_abs()),
            SIGNAL_BITS => Self::Lost(format!("its wait status {word:#x} makes no sense")),
            _ => Self::Signal(signal.unsigned_abs()),
        }
    }
}

impl From<Ended> for v1::Exit {
    fn from(ended: Ended) -> Self {
        let how = match ended.exit {
            Exit::Code(code) => v1::exit::How::Code(code),
            Exit::Signal(signal) => v1::exit::How::Signal(signal),
            Exit::Lost(why) => v1::exit::How::Lost(why),
        };
        let limit_met = ended.limit_met.map_or(v1::Limit::Unspecified, v1::Limit::from);
        let limit = ended.limit_met.map(|limit| limit.to_string()).unwrap_or_default();
        Self { how: Some(how), limit, limit_met: limit_met.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::{Exit, Limit};

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
    fn whose_container_met_a_limit_was_killed_with_it() {
        let lost = || Exit::Lost("its container was killed before it could tell".to_owned());
        assert_eq!(lost().by_limit(Some(Limit::Memory(64 << 20))), Exit::Signal(9));
        assert_eq!(lost().by_limit(None), lost());
        assert_eq!(Exit::Signal(7).by_limit(Some(Limit::NodeMemory)), Exit::Signal(7));
    }
}
