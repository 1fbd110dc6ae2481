//! The local descriptor table (modify_ldt(2)), which fork(2) copies. Read from the template, or from a parent that stays
//! stopped.

use std::os::unix::fs::FileExt;

use farfork_wire::descriptor::LocalDescriptor;

use crate::capture::error::CaptureError;
use crate::capture::injection::injector::{InjectedCall, Injector};
use crate::capture::injection::script_runner::InjectionTarget;
use crate::capture::tracer::executor::run_ready;

/// Size of the largest table, in bytes.
const TABLE_BYTES_MAX: u64 = 8192 * ENTRY_BYTES;
const ENTRY_BYTES: u64 = 8;

/// The call that writes the start of the table to `address`. Returns `bytes` if there is a table, otherwise 0.
pub(in crate::capture) fn read_table_call(address: u64, bytes: u64) -> InjectedCall {
    const MODIFY_LDT: u64 = 154;
    const READ: u64 = 0;
    InjectedCall::new("modify_ldt", MODIFY_LDT, [READ, address, bytes]).never_failing()
}

/// Reads the whole table, for which memory is mapped in the target. The kernel always reads from the first entry.
pub(in crate::capture) fn read_table(
    target: &InjectionTarget<'_>,
    injector: &mut Injector<'_>,
) -> Result<Vec<LocalDescriptor>, CaptureError> {
    const MMAP: u64 = 9;
    const MUNMAP: u64 = 11;
    const READ_WRITE: u64 = 3;
    const PRIVATE_ANONYMOUS: u64 = 0x22;
    let map = InjectedCall::new("mmap", MMAP, [0, TABLE_BYTES_MAX, READ_WRITE, PRIVATE_ANONYMOUS, u64::MAX, 0]);
    let buffer = run_ready(injector.call(target.pid, target.registers, map))?;
    let mut table = vec![0; TABLE_BYTES_MAX as usize];
    let call = read_table_call(buffer, TABLE_BYTES_MAX);
    let read = run_ready(injector.call(target.pid, target.registers, call)).and_then(|_| {
        target.mem.read_exact_at(&mut table, buffer).map_err(CaptureError::reading(target.pid, "its local descriptors"))
    });
    let unmap = InjectedCall::new("munmap", MUNMAP, [buffer, TABLE_BYTES_MAX]);
    run_ready(injector.call(target.pid, target.registers, unmap))?;
    read.map(|()| parse_table(&table))
}

fn parse_table(table: &[u8]) -> Vec<LocalDescriptor> {
    let (entries, _) = table.as_chunks::<{ ENTRY_BYTES as usize }>();
    let entry = |(number, bytes): (u32, &[u8; ENTRY_BYTES as usize])| {
        let segment = u64::from_ne_bytes(*bytes);
        (segment != 0).then_some(LocalDescriptor { number, segment })
    };
    (0..).zip(entries).filter_map(entry).collect()
}
