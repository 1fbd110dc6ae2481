//! Tests of written pages of private mappings: which descriptors are valid, and the offsets of the pages in the file of all
//! written pages.

use farfork_wire::descriptor::{Backing, Descriptor, ExtentId, PageRun, WrittenRun, decode, encode};

use super::{Corruption, descriptor, require_refusal};

/// A descriptor whose only shared object is mapped privately. The populated page of extent 1 is the object's one written
/// page.
fn with_private_object() -> Descriptor {
    let mut written = descriptor();
    written.mappings[2].backing = private(0, 0, Some(ExtentId(1)));
    written
}

fn private(object: u32, offset: u64, written: Option<ExtentId>) -> Backing {
    Backing::PrivateObject { object, offset, written }
}

#[test]
fn written_pages_are_consecutive_in_the_memory_file() {
    let mut descriptor = with_private_object();
    let (file, offset, written) = (0, 0x1000, Some(ExtentId(0)));
    descriptor.mappings[0].backing = Backing::PrivateWritableFile { file, offset, extent: ExtentId(0), written };
    descriptor.eager_bytes.clear();
    descriptor.extents[0].inherited.clear();
    descriptor.extents[0].populated = vec![PageRun { first: 1, count: 1 }];
    assert_eq!(decode(&encode(&descriptor).unwrap()).expect("the descriptor is valid"), descriptor);
    let protection = descriptor.mappings[0].protection;
    let run = |mapping: (u64, u64), address, extent, extent_offset, file_offset| {
        let bytes = 0x1000;
        WrittenRun { process: 0, mapping, protection, address, bytes, extent, extent_offset, file_offset }
    };
    let file = run((0x1000, 0x3000), 0x2000, ExtentId(0), 0x1000, 0);
    let object = run((0x8000, 0x9000), 0x8000, ExtentId(1), 0, 0x1000);
    assert_eq!(descriptor.written_runs(), [file, object]);
}

#[test]
fn inconsistent_private_mappings_are_refused() {
    let changes: [(&str, Corruption); 6] = [
        ("a private mapping of an object that is missing", |d| d.mappings[2].backing = private(1, 0, None)),
        ("a private mapping from half a page on", |d| d.mappings[2].backing = private(0, 0x800, None)),
        ("written pages that are missing", |d| d.mappings[2].backing = private(0, 0, Some(ExtentId(9)))),
        ("written pages of another length", |d| d.mappings[2].backing = private(0, 0, Some(ExtentId(0)))),
        ("written pages that another seed has", |d| {
            d.eager_bytes.clear();
            d.mappings[0].backing = private(0, 0, Some(ExtentId(0)));
        }),
        ("a private mapping of a writable file that is missing", |d| {
            let extent = ExtentId(1);
            d.mappings[2].backing = Backing::PrivateWritableFile { file: 7, offset: 0, extent, written: None };
        }),
    ];
    assert_eq!(with_private_object().validate(), Ok(()));
    require_refusal(&changes);
}
