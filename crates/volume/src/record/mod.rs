//! The records of a log: the changes of one operation, and their encoding. Does no I/O, and reads no clock.
//!
//! `view` makes effects, `codec` turns them into records, `replay` reads them back, `change` folds them.

mod attributes;
mod codec;
mod effect;
mod entry_name;

pub use attributes::{FileKind, InodeAttributes, InodeNumber, Timestamp};
pub use codec::{
    DATA_ALIGNED_MIN, HEADER_BYTES, PAGE_BYTES, RECORD_ALIGNMENT, RecordBody, RecordChecksum, RecordError,
    RecordHeader, RecordKind, RecordShape, decode_body, encode_body, seal_header,
};
pub use effect::{
    DATA_BYTES_MAX, EFFECTS_MAX, EffectError, FILE_BYTES_MAX, RecordEffect, SYMLINK_BYTES_MAX, XATTR_BYTES_MAX,
    XattrName,
};
pub use entry_name::{EntryKey, EntryName, NAME_BYTES_MAX};
