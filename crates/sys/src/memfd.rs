//! Anonymous memory as a file (memfd_create(2)).

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

/// Creates an empty memfd, close-on-exec. With `sealable`, seals can be added later.
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

/// Seals `memfd`, which must be sealable, and opens it for reading from its beginning. After that, its contents cannot
/// change.
///
/// # Errors
/// As fcntl(F_ADD_SEALS) and open(2).
pub fn seal_read_only(memfd: &File) -> io::Result<File> {
    seal(memfd, (SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL).bits())?;
    // A new open file description, with its own position.
    File::open(format!("/proc/self/fd/{}", memfd.as_raw_fd()))
}

/// Creates a sealed memfd that contains the program `image`, for execution by descriptor (execveat(2)).
///
/// # Errors
/// As memfd_create(2), write(2) and fcntl(F_ADD_SEALS).
pub fn create_executable(name: &str, image: &[u8]) -> io::Result<File> {
    use std::io::Write;
    let mut file = create(name, true)?;
    file.write_all(image)?;
    seal(&file, (SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL).bits())?;
    Ok(file)
}
