//! The hello that opens each direction of a connection. Its form never changes.

use super::RpcFrameError;

//  0         8          10         12         16
//  ┌─────────┬──────────┬──────────┬──────────┐
//  │ magic   │ newest   │ oldest   │ CRC-32C  │   the versions that the sender speaks;
//  │ FFRPC000│ u16      │ u16      │ u32      │   the checksum covers all before it
//  └─────────┴──────────┴──────────┴──────────┘

/// Size of a hello, in bytes.
pub const HELLO_BYTES: usize = 16;

const MAGIC: [u8; 8] = *b"FFRPC\0\0\0";
const CRC_COVERED_BYTES: usize = HELLO_BYTES - 4;

/// Range of protocol versions that one side supports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VersionRange {
    /// The newest supported version, which is preferred.
    pub newest: u16,
    /// The oldest supported version.
    pub oldest: u16,
}

impl VersionRange {
    /// The versions that this release supports.
    pub const SUPPORTED: Self = Self { newest: 1, oldest: 1 };

    /// Encodes the hello that announces these versions.
    pub fn encode(self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&self.newest.to_le_bytes());
        bytes[10..12].copy_from_slice(&self.oldest.to_le_bytes());
        let checksum = crc32c::crc32c(&bytes[..CRC_COVERED_BYTES]);
        bytes[CRC_COVERED_BYTES..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Decodes a peer's hello.
    ///
    /// # Errors
    /// [`RpcFrameError::BadMagic`], [`RpcFrameError::HelloChecksum`], or [`RpcFrameError::Invalid`].
    pub fn decode(bytes: &[u8; HELLO_BYTES]) -> Result<Self, RpcFrameError> {
        if bytes[..8] != MAGIC {
            return Err(RpcFrameError::BadMagic);
        }
        let (checked, checksum) = bytes.split_at(CRC_COVERED_BYTES);
        if checksum != crc32c::crc32c(checked).to_le_bytes() {
            return Err(RpcFrameError::HelloChecksum);
        }
        let number = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let versions = Self { newest: number(8), oldest: number(10) };
        if versions.oldest > versions.newest {
            return Err(RpcFrameError::Invalid("its oldest version is newer than its newest"));
        }
        Ok(versions)
    }

    /// Returns the version to use with a peer: the newest that both sides support.
    ///
    /// # Errors
    /// [`RpcFrameError::Version`] if there is no common version.
    pub fn negotiate(self, theirs: Self) -> Result<u16, RpcFrameError> {
        let version = self.newest.min(theirs.newest);
        let known = version >= self.oldest.max(theirs.oldest);
        if known { Ok(version) } else { Err(RpcFrameError::Version { theirs, ours: self }) }
    }
}
