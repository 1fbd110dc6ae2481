//! Writes a plan's tables and texts one after another, and fills in pointers when the plan's address is known.

use zerocopy::{Immutable, IntoBytes};

use super::RestoreError;
use super::plan_layout::{PlanHeader, PlanSpan};

/// Tables contain 64-bit words.
const ALIGNMENT: usize = 8;

/// A plan under construction. Room for the header is reserved at the start.
#[derive(Debug)]
pub(super) struct PlanWriter {
    bytes: Vec<u8>,
    /// Pairs of offsets: a word that will contain an address, and the data to which it will point.
    relocations: Vec<(u32, u32)>,
}

impl PlanWriter {
    pub(super) fn new() -> Self {
        Self { bytes: vec![0; size_of::<PlanHeader>()], relocations: Vec::new() }
    }

    /// Appends a table.
    pub(super) fn write_table<T: IntoBytes + Immutable>(&mut self, rows: &[T]) -> Result<PlanSpan, RestoreError> {
        let offset = self.write_bytes(rows.as_bytes())?;
        Ok(PlanSpan { offset, count: rows.len() as u32 })
    }

    /// Appends bytes at the next aligned offset. Returns this offset.
    pub(super) fn write_bytes(&mut self, bytes: &[u8]) -> Result<u32, RestoreError> {
        self.bytes.resize(self.bytes.len().next_multiple_of(ALIGNMENT), 0);
        let offset = u32::try_from(self.bytes.len()).map_err(|_| RestoreError::PlanTooLarge)?;
        self.bytes.extend_from_slice(bytes);
        u32::try_from(self.bytes.len()).map_err(|_| RestoreError::PlanTooLarge)?;
        Ok(offset)
    }

    /// Appends a text with its terminating zero.
    pub(super) fn write_text(&mut self, text: &str) -> Result<u32, RestoreError> {
        if text.as_bytes().contains(&0) {
            return Err(RestoreError::InvalidPath { path: text.replace('\0', "\\0") });
        }
        let offset = self.write_bytes(text.as_bytes())?;
        self.bytes.push(0);
        Ok(offset)
    }

    /// Makes the word at `offset` point to the byte at offset `to`.
    pub(super) fn add_relocation(&mut self, offset: u32, to: u32) {
        self.relocations.push((offset, to));
    }

    /// Writes the pointers, now that the plan's address is known.
    pub(super) fn relocate(&mut self, address: u64) {
        for (offset, to) in std::mem::take(&mut self.relocations) {
            self.overwrite(offset, &(address + u64::from(to)).to_ne_bytes());
        }
    }

    /// Returns the length so far, in bytes.
    pub(super) fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Overwrites the bytes at `offset`.
    pub(super) fn overwrite(&mut self, offset: u32, bytes: &[u8]) {
        let start = offset as usize;
        self.bytes[start..start + bytes.len()].copy_from_slice(bytes);
    }

    pub(super) fn finish(mut self, header: &PlanHeader) -> Vec<u8> {
        self.overwrite(0, header.as_bytes());
        self.bytes
    }
}
