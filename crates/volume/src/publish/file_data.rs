//! Reads the data of a file of the shared tree.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

/// Finds the first byte of data at or after an offset; none if only a hole follows.
pub(super) fn find_data(file: &File, offset: u64) -> io::Result<Option<u64>> {
    match seek(file, SeekFrom::Data(offset)) {
        Ok(data) => Ok(Some(data)),
        Err(Errno::NXIO) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Reads until the buffer is full or the file ends. Returns the number of bytes.
pub(crate) fn read_up_to(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match file.read_at(&mut buffer[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(bytes) => done += bytes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}
