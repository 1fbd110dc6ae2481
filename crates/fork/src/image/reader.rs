//! Reads an image: the header at open, and pages on demand. Verifies each page against its checksum.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use farfork_wire::PAGE_SIZE;
use farfork_wire::descriptor::{Descriptor, ExtentId, decode};
use rustix::io::Errno;

use super::ImageError;
use super::format::{
    ImageHeader, ImageLayout, PAGES_MAX, PREFIX_BYTES, decode_checksums, decode_header_bytes, is_index_intact,
};
use super::page_index::PageIndex;

/// An open image.
#[derive(Debug)]
pub struct Image {
    path: PathBuf,
    file: File,
    head: ImageHeader,
    descriptor: Descriptor,
    pages: PageIndex,
    layout: ImageLayout,
    checksums: Vec<u32>,
}

impl Image {
    /// Opens an image, and checks that it is complete.
    ///
    /// # Errors
    /// [`ImageError::Read`], [`ImageError::Corrupt`].
    pub fn open(path: &Path) -> Result<Self, ImageError> {
        let unreadable = |source| ImageError::Read { path: path.to_owned(), source };
        let damaged = |what: String| ImageError::Corrupt { path: path.to_owned(), what };
        let file = File::open(path).map_err(unreadable)?;
        let file_bytes = file.metadata().map_err(unreadable)?.len();
        let cut = || damaged(format!("it was truncated to {file_bytes} bytes"));
        if file_bytes < PREFIX_BYTES as u64 {
            return Err(cut());
        }
        let mut prefix = [0; PREFIX_BYTES];
        file.read_exact_at(&mut prefix, 0).map_err(unreadable)?;
        let head_bytes = decode_header_bytes(&prefix).map_err(damaged)?;
        if PREFIX_BYTES as u64 + head_bytes > file_bytes {
            return Err(cut());
        }
        let mut bytes = vec![0; head_bytes as usize];
        file.read_exact_at(&mut bytes, PREFIX_BYTES as u64).map_err(unreadable)?;
        let head: ImageHeader =
            postcard::from_bytes(&bytes).map_err(|error| damaged(format!("its header: {error}")))?;
        let descriptor = decode(&head.descriptor).map_err(|error| damaged(error.to_string()))?;
        let pages = PageIndex::from_descriptor(&descriptor);
        if pages.slot_count() > PAGES_MAX {
            return Err(damaged(format!("its header lists {} pages", pages.slot_count())));
        }
        let layout = ImageLayout::new(head_bytes, pages.slot_count());
        if layout.file_bytes() != file_bytes {
            return Err(damaged(format!("it has {file_bytes} bytes instead of {}", layout.file_bytes())));
        }
        let mut index = vec![0; layout.index_bytes() as usize];
        file.read_exact_at(&mut index, 0).map_err(unreadable)?;
        if !is_index_intact(&index) {
            return Err(damaged("the checksum of its header does not match".to_owned()));
        }
        let checksums = decode_checksums(&index[layout.checksums_offset as usize..]);
        Ok(Self { path: path.to_owned(), file, head, descriptor, pages, layout, checksums })
    }

    /// Path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The header of the image.
    pub fn head(&self) -> &ImageHeader {
        &self.head
    }

    /// The seed's descriptor.
    pub fn descriptor(&self) -> &Descriptor {
        &self.descriptor
    }

    /// Removes the file. The open image stays readable.
    ///
    /// # Errors
    /// As unlink(2).
    pub fn remove(&self) -> io::Result<()> {
        fs::remove_file(&self.path)
    }

    /// Fills `into` with the bytes from `offset` of an extent. Pages without data are zeroes.
    ///
    /// # Errors
    /// EIO if a page is damaged or the file was truncated. The contents of `into` are then undefined.
    pub fn read(&self, extent: ExtentId, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let mut at = offset;
        let mut rest = into;
        while !rest.is_empty() {
            let (page, within) = (at / PAGE_SIZE, (at % PAGE_SIZE) as usize);
            let whole_pages = rest.len() as u64 / PAGE_SIZE;
            let done = match self.pages.find_slot(extent, page) {
                Some((slot, in_a_row)) if within == 0 && whole_pages > 0 => {
                    let count = (in_a_row.min(whole_pages) * PAGE_SIZE) as usize;
                    self.read_pages(slot, &mut rest[..count])?;
                    count
                }
                found => {
                    let count = rest.len().min(PAGE_SIZE as usize - within);
                    let mut whole = [0; PAGE_SIZE as usize];
                    if let Some((slot, _)) = found {
                        self.read_pages(slot, &mut whole)?;
                    }
                    rest[..count].copy_from_slice(&whole[within..within + count]);
                    count
                }
            };
            rest = &mut rest[done..];
            at += done as u64;
        }
        Ok(())
    }

    fn read_pages(&self, first_slot: u64, into: &mut [u8]) -> io::Result<()> {
        let broken = |what: &dyn std::fmt::Display| {
            tracing::error!("image {}: {what}; its seed cannot be used any more", self.path.display());
            io::Error::from(Errno::IO)
        };
        self.file.read_exact_at(into, self.layout.page_offset(first_slot)).map_err(|error| broken(&error))?;
        for (slot, page) in (first_slot..).zip(into.chunks_exact(PAGE_SIZE as usize)) {
            if crc32c::crc32c(page) != self.checksums[slot as usize] {
                return Err(broken(&format!("page {slot} is damaged")));
            }
        }
        Ok(())
    }
}
