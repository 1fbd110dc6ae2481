//! Memory as a file (memfd_create(2)).

use std::fs::File;
use std::io;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

/// A new, empty one, close-on-exec. With `sealable`, seals can be added later.
///
/// # Errors
/// As memfd_create(2).
pub fn create(name: &str, sealable: bool) -> io::Result<File> {
    let flags = if sealable { MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING } else { MemfdFlags::CLOEXEC };
    Ok(memfd_create(name, flags)?.into())
}

/// Adds seals, as F_SEAL_* bits.
///
/// # Errors
/// As fcntl(F_ADD_SEALS).
pub fn seal(memfd: &File, seals: u32) -> io::Result<()> {
    Ok(fcntl_add_seals(memfd, SealFlags::from_bits_retain(seals))?)
}

/// An executable file with these contents that nothing can change any more, to be run by descriptor.
///
/// # Errors
/// As memfd_create(2), write(2) and fcntl(F_ADD_SEALS).
pub fn executable(name: &str, image: &[u8]) -> io::Result<File> {
    use std::io::Write;
    let mut file = create(name, true)?;
    file.write_all(image)?;
    seal(&file, (SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL).bits())?;
    Ok(file)
}
