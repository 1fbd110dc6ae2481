//! The hello that opens each direction of a connection. Its form never changes, so that peers of any two versions recognize
//! each other's version.

use super::{FabricFrameError, FieldReader};

/// Version of the frames that follow the hello. Version 1 had no frames for changes. Version 2 had a checksum in every DATA
/// frame.
pub const VERSION: u32 = 3;

//  0         8          12         16
//  ┌─────────┬──────────┬──────────┐
//  │ magic   │ version  │ CRC-32C  │   the checksum covers magic and version
//  │ FFABRIC0│ u32      │ u32      │   all numbers are little-endian
//  └─────────┴──────────┴──────────┘

/// Size of a hello, in bytes.
pub const HELLO_BYTES: usize = 16;

const MAGIC: [u8; 8] = *b"FFABRIC\0";

/// Encodes the hello of this version.
pub fn encode_hello() -> [u8; HELLO_BYTES] {
    encode_version(VERSION)
}

/// Checks a peer's hello.
///
/// # Errors
/// [`FabricFrameError::BadMagic`], [`FabricFrameError::HelloChecksum`] or [`FabricFrameError::Version`].
pub fn decode_hello(bytes: &[u8; HELLO_BYTES]) -> Result<(), FabricFrameError> {
    let mut fields = FieldReader(bytes);
    if fields.take() != Some(&MAGIC) {
        return Err(FabricFrameError::BadMagic);
    }
    let (Some(theirs), Some(checksum)) = (fields.read_u32(), fields.read_u32()) else {
        unreachable!("a hello has two numbers after its magic");
    };
    if checksum != crc32c::crc32c(&bytes[..12]) {
        return Err(FabricFrameError::HelloChecksum);
    }
    if theirs != VERSION {
        return Err(FabricFrameError::Version { theirs });
    }
    Ok(())
}

pub(super) fn encode_version(version: u32) -> [u8; HELLO_BYTES] {
    let mut bytes = [0; HELLO_BYTES];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..12].copy_from_slice(&version.to_le_bytes());
    let checksum = crc32c::crc32c(&bytes[..12]);
    bytes[12..].copy_from_slice(&checksum.to_le_bytes());
    bytes
}
